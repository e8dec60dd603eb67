{{- define "warmroute.name" -}}
{{ default .Release.Name .Values.nameOverride | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "warmroute.selector" -}}
app.kubernetes.io/name: warmroute
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "warmroute.labels" -}}
{{ include "warmroute.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "warmroute.metadata" -}}
name: {{ include "warmroute.name" . }}{{ .suffix }}
namespace: {{ .Release.Namespace }}
labels:
  {{- include "warmroute.labels" . | nindent 2 }}
{{- end }}

{{- /* How a probe asks whether the process lives. A picker answers where Gateways ask it, too. */ -}}
{{- define "warmroute.alive" -}}
{{- if eq .Values.mode "picker" -}}
grpc: {port: 9003, service: liveness}
{{- else -}}
httpGet: {path: /livez, port: admin}
{{- end -}}
{{- end }}

{{- define "warmroute.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{- /* What every container of our image may do. */ -}}
{{- define "warmroute.securityContext" -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
readOnlyRootFilesystem: true
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- /* The settings: the user's, on all addresses unless they say otherwise, with the chart's ports and drain. */ -}}
{{- define "warmroute.config" -}}
{{- range list "port" "admin_port" "uds" "takeover" "watch" -}}
{{- if hasKey $.Values.config . }}{{ fail (printf "config.%s: the chart sets it; remove it" .) }}{{ end -}}
{{- end -}}
{{- range list "drain_delay_s" "drain_s" -}}
{{- if hasKey (default dict $.Values.config.timeouts) . }}{{ fail (printf "config.timeouts.%s: use drain.delaySeconds and drain.seconds" .) }}{{ end -}}
{{- end -}}
{{- range list "admin_token" "auth.isolation_secret" "redis.password" "redis.sentinel_password" -}}
{{- $section := $.Values.config -}}
{{- $path := splitList "." . -}}
{{- range initial $path }}{{ $section = default dict (get $section .) }}{{ end -}}
{{- if get $section (last $path) }}{{ fail (printf "config.%s: a ConfigMap is no place for it; use the Secret of `secrets`, or env" .) }}{{ end -}}
{{- end -}}
{{- range default list $.Values.config.workers -}}
{{- if and (kindIs "map" .) .api_key }}{{ fail "config.workers: an api_key is no setting for a ConfigMap; use env" }}{{ end -}}
{{- end -}}
{{- range $name, $source := default dict (default dict $.Values.config.discovery).sources -}}
{{- if $source.api_key }}{{ fail (printf "config.discovery.sources.%s.api_key: a ConfigMap is no place for it; use env" $name) }}{{ end -}}
{{- end -}}
{{- $drain := dict "drain_delay_s" .Values.drain.delaySeconds "drain_s" .Values.drain.seconds -}}
{{- $fixed := dict "admin_port" 8001 "watch" true "timeouts" $drain -}}
{{- if include "warmroute.severalPools" . -}}
{{- $pools := dict -}}
{{- range $name, $pool := .Values.picker.pools -}}
{{- $_ := set $pools $name (dict "port" $pool.port "workers" (dict "pool" $name)) -}}
{{- end -}}
{{- $_ := set $fixed "picker" (dict "pools" $pools) -}}
{{- else -}}
{{- $_ := set $fixed "port" 8000 -}}
{{- end -}}
{{- $ours := dict "host" "0.0.0.0" "admin_host" "0.0.0.0" -}}
{{- with include "warmroute.sources" . | fromYaml -}}
{{- $_ := set $ours "discovery" (dict "sources" .) -}}
{{- end -}}
{{- mergeOverwrite $ours (deepCopy .Values.config) $fixed | toYaml -}}
{{- end }}

{{- /* Whether the picker has several pools, each at a port of its own. */ -}}
{{- define "warmroute.severalPools" -}}
{{- if and (eq .Values.mode "picker") .Values.picker.pools }}yes{{ end -}}
{{- end }}

{{- /* The ports of the picker by name, as JSON. */ -}}
{{- define "warmroute.pickerPorts" -}}
{{- $ports := dict "grpc" 9002 -}}
{{- if include "warmroute.severalPools" . -}}
{{- $ports = dict -}}
{{- range $number, $name := keys .Values.picker.pools | sortAlpha -}}
{{- $_ := set $ports (printf "grpc-%d" $number) (get $.Values.picker.pools $name).port -}}
{{- end -}}
{{- end -}}
{{- toJson $ports -}}
{{- end }}

{{- /* The pool of the picker: its name, and the labels and ports of its workers if the chart makes it. */ -}}
{{- define "warmroute.poolName" -}}
{{- if .Values.picker.pool.create }}{{ include "warmroute.name" . }}{{ else }}{{ required "picker.pool.name: name the InferencePool, or let the chart create it" .Values.picker.pool.name }}{{ end -}}
{{- end }}

{{- define "warmroute.poolLabels" -}}
{{- if .Values.picker.pool.matchLabels }}
{{- toYaml .Values.picker.pool.matchLabels }}
{{- else if .Values.workers.enabled }}
{{- include "warmroute.selector" (merge (dict "component" "workers") .) }}
{{- else }}
{{- fail "picker.pool.matchLabels: write the labels of the workers' pods" }}
{{- end }}
{{- end }}

{{- define "warmroute.poolPorts" -}}
{{- $own := list (ternary 8080 8000 .Values.workers.sidecar.enabled) -}}
{{- default (ternary $own (list 8000) .Values.workers.enabled) .Values.picker.pool.targetPorts | toJson -}}
{{- end }}

{{- define "warmroute.secret" -}}
{{ .Values.secrets.name | default (printf "%s-secrets" (include "warmroute.name" .)) }}
{{- end }}

{{- /* The gateway's environment from its Secret, apart from what the user's settings give in another way. */ -}}
{{- define "warmroute.secretEnvironment" -}}
{{- $config := .Values.config -}}
{{- $given := list -}}
{{- range .Values.env }}{{ $given = append $given .name }}{{ end -}}
{{- $wanted := dict -}}
{{- if not $config.admin_tokens }}{{ $_ := set $wanted "WARMROUTE_ADMIN_TOKENS" "admin-tokens" }}{{ end -}}
{{- if not (or $config.admin_token_file (has "WARMROUTE_ADMIN_TOKEN_FILE" $given)) -}}
{{- $_ := set $wanted "WARMROUTE_ADMIN_TOKEN" "admin-token" -}}
{{- end -}}
{{- if not (has (toString (default dict $config.auth).isolate_cache) (list "off" "false")) -}}
{{- $_ := set $wanted "WARMROUTE_AUTH__ISOLATION_SECRET" "isolation-secret" -}}
{{- end -}}
{{- if or (default dict $config.redis).url (has "WARMROUTE_REDIS__URL" $given) -}}
{{- $_ := set $wanted "WARMROUTE_REDIS__PASSWORD" "redis-password" -}}
{{- end -}}
{{- range $name, $key := $wanted -}}
{{- if not (has $name $given) }}
- name: {{ $name }}
  valueFrom: {secretKeyRef: {name: {{ include "warmroute.secret" $ }}, key: {{ $key }}{{ if has $key (list "admin-tokens" "redis-password") }}, optional: true{{ end }}}}
{{- end -}}
{{- end -}}
{{- end }}

{{- /* The sources of workers that the chart adds to the settings, by name. */ -}}
{{- define "warmroute.sources" -}}
{{- $sources := dict -}}
{{- if eq .Values.mode "picker" -}}
{{- if or .Values.discovery.service .Values.discovery.pods .Values.discovery.inferencePool .Values.discovery.port -}}
{{- fail "discovery: a picker takes the workers of its pool; use picker.pool" -}}
{{- end -}}
{{- $defaults := default dict .Values.discovery.defaults -}}
{{- if .Values.workers.enabled }}{{ $defaults = merge (deepCopy $defaults) (dict "kv-events-port" "5557" "kv-replay-port" "5558") }}{{ end -}}
{{- range $name, $_ := .Values.picker.pools -}}
{{- $labelled := merge (dict "label.pool" $name) $defaults -}}
{{- $_ := set $sources (printf "pool-%s" ($name | replace "." "-")) (dict "kubernetes" (dict "pool" $name) "defaults" $labelled) -}}
{{- else -}}
{{- $source := dict "kubernetes" (dict "pool" (include "warmroute.poolName" .)) -}}
{{- if $defaults }}{{ $_ := set $source "defaults" $defaults }}{{ end -}}
{{- $_ := set $sources "pool" $source -}}
{{- end -}}
{{- else -}}
{{- with .Values.discovery -}}
{{- $chosen := dict -}}
{{- range $name, $value := dict "service" .service "pods" .pods "pool" .inferencePool -}}
{{- if $value }}{{ $_ := set $chosen $name $value }}{{ end -}}
{{- end -}}
{{- if gt (len $chosen) 1 }}{{ fail "discovery: write one of service, pods and inferencePool" }}{{ end -}}
{{- if and .port .inferencePool }}{{ fail "discovery.port: an InferencePool has its own ports; remove it" }}{{ end -}}
{{- if $chosen -}}
{{- if .namespace }}{{ $_ := set $chosen "namespace" .namespace }}{{ end -}}
{{- if .port }}{{ $_ := set $chosen "port" .port }}{{ end -}}
{{- $source := dict "kubernetes" $chosen -}}
{{- if .defaults }}{{ $_ := set $source "defaults" .defaults }}{{ end -}}
{{- $_ := set $sources "cluster" $source -}}
{{- else if or .namespace .port .defaults }}{{ fail "discovery: write one of service, pods and inferencePool, too" }}{{ end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.workers.enabled (ne .Values.mode "picker") -}}
{{- $source := dict "kubernetes" (dict "service" (printf "%s-workers" (include "warmroute.name" .))) -}}
{{- $_ := set $source "defaults" (dict "kv-events-port" "5557" "kv-replay-port" "5558") -}}
{{- $_ := set $sources "workers" $source -}}
{{- end -}}
{{- range $name, $_ := default dict (default dict .Values.config.discovery).sources -}}
{{- if hasKey $sources $name }}{{ fail (printf "config.discovery.sources.%s: the chart has a source of this name; choose another" $name) }}{{ end -}}
{{- end -}}
{{- if $sources }}{{ toYaml $sources }}{{ end -}}
{{- end }}

{{- /* What the sources read from this cluster's API server: resources, by namespace. */ -}}
{{- define "warmroute.reads" -}}
{{- $reads := dict -}}
{{- $ofPool := concat (list "pods" "inferencepools") (ternary (list "inferenceobjectives" "inferencemodelrewrites") list (eq .Values.mode "picker")) -}}
{{- $settings := include "warmroute.config" . | fromYaml -}}
{{- range $name, $source := default dict (default dict $settings.discovery).sources -}}
{{- with $source.kubernetes -}}
{{- if not .api_url -}}
{{- $namespace := default $.Release.Namespace .namespace -}}
{{- $resources := ternary (list "endpointslices") (ternary $ofPool (list "pods") (hasKey . "pool")) (hasKey . "service") -}}
{{- $_ := set $reads $namespace (concat (default list (get $reads $namespace)) $resources | uniq) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if $reads }}{{ toYaml $reads }}{{ end -}}
{{- end }}

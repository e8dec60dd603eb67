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
{{- $drain := dict "drain_delay_s" .Values.drain.delaySeconds "drain_s" .Values.drain.seconds -}}
{{- $fixed := dict "port" 8000 "admin_port" 8001 "watch" true "timeouts" $drain -}}
{{- $ours := dict "host" "0.0.0.0" "admin_host" "0.0.0.0" -}}
{{- with include "warmroute.sources" . | fromYaml -}}
{{- $_ := set $ours "discovery" (dict "sources" .) -}}
{{- end -}}
{{- mergeOverwrite $ours (deepCopy .Values.config) $fixed | toYaml -}}
{{- end }}

{{- /* The sources of workers that the chart adds to the settings, by name. */ -}}
{{- define "warmroute.sources" -}}
{{- $sources := dict -}}
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
{{- if .Values.workers.enabled -}}
{{- $source := dict "kubernetes" (dict "service" (printf "%s-workers" (include "warmroute.name" .))) -}}
{{- /* A sidecar names its ports of KV events by itself. */ -}}
{{- if not .Values.workers.sidecar.enabled }}{{ $_ := set $source "defaults" (dict "kv-events-port" "5557" "kv-replay-port" "5558") }}{{ end -}}
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
{{- $settings := include "warmroute.config" . | fromYaml -}}
{{- range $name, $source := default dict (default dict $settings.discovery).sources -}}
{{- with $source.kubernetes -}}
{{- if not .api_url -}}
{{- $namespace := default $.Release.Namespace .namespace -}}
{{- $resources := ternary (list "endpointslices") (ternary (list "pods" "inferencepools") (list "pods") (hasKey . "pool")) (hasKey . "service") -}}
{{- $_ := set $reads $namespace (concat (default list (get $reads $namespace)) $resources | uniq) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if $reads }}{{ toYaml $reads }}{{ end -}}
{{- end }}

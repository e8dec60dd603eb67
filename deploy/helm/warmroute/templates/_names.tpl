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
{{- mergeOverwrite (dict "host" "0.0.0.0" "admin_host" "0.0.0.0") (deepCopy .Values.config) $fixed | toYaml -}}
{{- end }}

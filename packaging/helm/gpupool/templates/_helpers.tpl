{{- define "gpupool.labels" -}}
app.kubernetes.io/name: gpupool
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "gpupool.selector" -}}
app.kubernetes.io/name: gpupool
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "gpupool.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{/* A server that has lived keeps its identity, and needs no token; a new one waits for its own. */}}
{{- define "gpupool.start" -}}
tokens=/run/secrets/gpupool
if grep -qs '"complete": true' "$STATE_DIRECTORY/identity.json" || [ "$NODE_NAME" = "$FIRST_NODE" ]; then
  exec gpupool join "$@"
fi
while :; do
  for token in "$tokens/$NODE_NAME" "$tokens/token"; do
    if [ -s "$token" ]; then exec gpupool join --token-file "$token" "$@"; fi
  done
  echo "no token for $NODE_NAME yet: the Secret needs the key $NODE_NAME or token" >&2
  sleep 10
done
{{- end }}

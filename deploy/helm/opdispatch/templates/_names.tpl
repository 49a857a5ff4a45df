{{- define "opdispatch.labels" -}}
app.kubernetes.io/name: opdispatch
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "opdispatch.security" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 0
  fsGroup: 0
  seccompProfile: {type: RuntimeDefault}
{{- end }}
{{- define "opdispatch.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

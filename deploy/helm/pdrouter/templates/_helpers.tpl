{{- define "pdrouter.labels" -}}
app.kubernetes.io/name: {{ .Values.name }}
app.kubernetes.io/part-of: pdrouter
{{- end }}

{{- define "pdrouter.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "pdrouter.redis" -}}
{{- if or .Values.redis.enabled .Values.redis.address }}true{{ end }}
{{- end }}

{{- define "pdrouter.records" -}}
{{- if or (include "pdrouter.redis" .) .Values.agents.enabled }}true{{ end }}
{{- end }}

{{- define "pdrouter.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "pdrouter.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- /* What the chart knows; extraConfig may add to it. */}}
{{- define "pdrouter.config" -}}
listen:
  clients: 0.0.0.0:8080
  operations: 0.0.0.0:9090
{{- if .Values.agents.enabled }}
  agents: 0.0.0.0:8081
  agents_tls: {cert_file: /etc/pdrouter/agents-tls/tls.crt, key_file: /etc/pdrouter/agents-tls/tls.key}
{{- end }}
models:
{{ toYaml .Values.models | indent 2 }}
policy:
{{ toYaml .Values.policy | indent 2 }}
timeouts:
{{ toYaml .Values.timeouts | indent 2 }}
replicas: {{ if .Values.autoscaling.enabled }}{{ .Values.autoscaling.maxReplicas }}{{ else }}{{ .Values.replicas }}{{ end }}
auth:
  admins:
    keys: [/etc/pdrouter/admin-keys]
    issuer: pdrouter
{{- if .Values.auth.apiKeys }}
  clients:
    api_keys_file: /etc/pdrouter/api-keys/api-keys
{{- end }}
{{- if include "pdrouter.records" . }}
  records:
    key_file: /etc/pdrouter/record-key/own.jwk
    trusted: [/etc/pdrouter/record-keys]
{{- end }}
{{- if .Values.agents.enabled }}
  agents:
    keys: [/etc/pdrouter/agent-keys]
    issuer: pdrouter
  control_token_file: /etc/pdrouter/gateway-token/token
{{- end }}
{{- if include "pdrouter.redis" . }}
metadata:
  store: redis
  redis:
    address: {{ .Values.redis.address | default (printf "%s-redis:6379" .Values.name) }}
    username: pdrouter
    password_file: /etc/pdrouter/redis/password
{{- end }}
log: {level: info, format: json}
{{- end }}

{{- /* The pod that makes and renews the Secrets. */}}
{{- define "pdrouter.secretsPod" }}
metadata:
  labels:
    app.kubernetes.io/name: {{ .Values.name }}-secrets
    app.kubernetes.io/part-of: pdrouter
spec:
  serviceAccountName: {{ .Values.name }}-secrets
  automountServiceAccountToken: true
  restartPolicy: OnFailure
{{- with .Values.image.pullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
{{- end }}
  securityContext: {{- include "pdrouter.podSecurity" . | nindent 4 }}
  containers:
    - name: secrets
      image: {{ include "pdrouter.image" . }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      command: ["/usr/local/bin/pdrouter", "keys", "kubernetes", "--name", {{ .Values.name | quote }}{{ with .Values.secrets.rotateEvery }}, "--rotate-every", {{ . | quote }}{{ end }}]
      resources:
        requests: {cpu: 50m, memory: 64Mi}
        limits: {memory: 256Mi}
      securityContext: {{- include "pdrouter.containerSecurity" . | nindent 8 }}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
  volumes:
    - {name: tmp, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
{{- end }}

{{- /* How fast engines come and go. Pods that restart or load their model are not seen by the gateway, so less is wanted meanwhile: the window is
longer than that usually takes. */}}
{{- define "pdrouter.scalingBehavior" -}}
scaleUp:
  selectPolicy: Max
  policies:
    - {type: Percent, value: 100, periodSeconds: 60}
    - {type: Pods, value: 4, periodSeconds: 60}
scaleDown:
  stabilizationWindowSeconds: {{ .Values.engineScaling.stabilizationSeconds }}
  policies: [{type: Pods, value: 1, periodSeconds: 120}]
{{- end }}

{{- /* Where a monitor of the Prometheus operator reads the gateways' metrics: called with the chart and the monitor's values. */}}
{{- define "pdrouter.scrape" -}}
{{- $chart := index . 0 }}
- port: operations
  path: /metrics
  interval: {{ (index . 1).interval }}
  authorization:
    credentials: {name: {{ $chart.Values.name }}-prometheus-token, key: token}
{{- end }}

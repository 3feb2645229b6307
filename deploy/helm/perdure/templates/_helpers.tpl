{{- define "perdure.name" -}}
{{- printf "%s" .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- end }}

{{/* Labels of a part: (dict "root" $ "part" "worker") */}}
{{- define "perdure.labels" -}}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
{{ include "perdure.selector" . }}
{{- end }}

{{- define "perdure.selector" -}}
app.kubernetes.io/name: perdure
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{- define "perdure.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "perdure.metricsPort" -}}
{{ .Values.settings.metrics | splitList ":" | last }}
{{- end }}

{{/* The file of settings: tables must follow plain keys, so toToml gets the whole map. */}}
{{- define "perdure.settings" -}}
{{ merge (dict "agents" "/app/agents") .Values.settings | toToml }}
{{- end }}

{{/* The task queues of a worker, as JSON: the general one, turns of sessions, rate-limited models and tools. */}}
{{- define "perdure.queues" -}}
{{- $queue := .Values.settings.task_queue -}}
{{- $found := list (dict "name" $queue "types" "workflow,activity") -}}
{{- if .Values.settings.session_runs -}}
{{- $found = append $found (dict "name" (printf "%s/runs" $queue) "types" "activity") -}}
{{- end -}}
{{- $models := merge (dict) (.Values.settings.model_limits | default dict) (.Values.settings.model_token_limits | default dict) -}}
{{- range $name := keys $models | sortAlpha -}}
{{- $found = append $found (dict "name" (printf "%s/model/%s" $queue $name) "types" "activity") -}}
{{- end -}}
{{- range $name := keys (.Values.settings.tool_limits | default dict) | sortAlpha -}}
{{- $found = append $found (dict "name" (printf "%s/tool/%s" $queue $name) "types" "activity") -}}
{{- end -}}
{{ $found | toJson }}
{{- end }}

{{- define "perdure.podSecurity" -}}
automountServiceAccountToken: false
enableServiceLinks: false # variables of a Service named perdure would look like settings
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile:
    type: RuntimeDefault
{{- end }}

{{- define "perdure.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end }}

{{- define "perdure.env" -}}
- name: TEMPORAL_ADDRESS
  value: {{ .Values.temporal.address | quote }}
- name: TEMPORAL_NAMESPACE
  value: {{ .Values.temporal.namespace | quote }}
- name: PERDURE_CONFIG
  value: /etc/perdure/perdure.toml
{{- end }}

{{- define "perdure.volumes" -}}
- name: config
  configMap:
    name: {{ include "perdure.name" . }}
- name: agents
  configMap:
    name: {{ include "perdure.name" . }}-agents
- name: tmp
  emptyDir:
    sizeLimit: 256Mi
{{- end }}

{{- define "perdure.volumeMounts" -}}
- name: config
  mountPath: /etc/perdure
  readOnly: true
- name: agents
  mountPath: /app/agents
  readOnly: true
- name: tmp
  mountPath: /tmp
{{- end }}

{{/* Where workers get their image, and the nodes that they may run on. */}}
{{- define "perdure.placement" -}}
imagePullSecrets: {{ .Values.imagePullSecrets | toJson }}
{{- range $key := list "nodeSelector" "tolerations" "affinity" }}
{{- with index $.Values.worker $key }}
{{ $key }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{/* A change of settings or agents rolls the pods. */}}
{{- define "perdure.digest" -}}
perdure/settings-digest: {{ cat (include "perdure.settings" .) (.Values.agents | toJson) | sha256sum | trunc 16 }}
{{- end }}

{{/* The pods of workers: of a Deployment, or of each version's Deployment that the controller makes. */}}
{{- define "perdure.workerPod" -}}
metadata:
  labels:
    {{- include "perdure.selector" (dict "root" . "part" "worker") | nindent 4 }}
  annotations:
    {{- include "perdure.digest" . | nindent 4 }}
spec:
  # Longer than the worker's own grace, in which calls end; another worker goes on with the rest.
  terminationGracePeriodSeconds: {{ add 15 (int .Values.settings.grace) }}
  {{- include "perdure.podSecurity" . | nindent 2 }}
  {{- include "perdure.placement" . | nindent 2 }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "perdure.selector" (dict "root" . "part" "worker") | nindent 10 }}
  containers:
    - name: worker
      image: {{ include "perdure.image" . }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args:
        - perdure
        - worker
        {{- if .Values.versions.enabled }}
        # The controller sets both variables.
        - --deployment-name=$(TEMPORAL_DEPLOYMENT_NAME)
        - --build-id=$(TEMPORAL_WORKER_BUILD_ID)
        {{- end }}
      env:
        {{- include "perdure.env" . | nindent 8 }}
        - name: PERDURE_HEALTH_PORT
          value: "8080"
        {{- with .Values.worker.env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with .Values.secret }}
      envFrom:
        - secretRef:
            name: {{ . }}
      {{- end }}
      ports:
        - name: health
          containerPort: 8080
        - name: metrics
          containerPort: {{ include "perdure.metricsPort" . }}
      startupProbe: # as long as the worker waits for the server, and a little more
        httpGet: {path: /livez, port: health}
        periodSeconds: 5
        failureThreshold: {{ add 3 (div (int (.Values.settings.wait | default 0)) 5) }}
      livenessProbe:
        httpGet: {path: /livez, port: health}
        periodSeconds: 10
        timeoutSeconds: 5
      readinessProbe:
        httpGet: {path: /readyz, port: health}
        periodSeconds: 5
        timeoutSeconds: 5
      resources:
        {{- toYaml .Values.worker.resources | nindent 8 }}
      {{- include "perdure.containerSecurity" . | nindent 6 }}
      volumeMounts:
        {{- include "perdure.volumeMounts" . | nindent 8 }}
  volumes:
    {{- include "perdure.volumes" . | nindent 4 }}
{{- end }}

{{/* The autoscaler's spec; its target is the caller's: (dict "root" $ "target" (dict …)) */}}
{{- define "perdure.autoscaler" -}}
{{- $values := .root.Values -}}
{{- if eq $values.autoscaling.kind "cpu" -}}
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
{{- with .metadata }}
metadata:
  {{- toYaml . | nindent 2 }}
{{- end }}
spec:
  scaleTargetRef: {{ .target | toJson }}
  minReplicas: {{ $values.autoscaling.minReplicas }}
  maxReplicas: {{ $values.autoscaling.maxReplicas }}
  metrics:
    - type: Resource
      resource:
        name: cpu
        target:
          type: Utilization
          averageUtilization: {{ $values.autoscaling.cpu }}
  behavior:
    scaleDown:
      stabilizationWindowSeconds: 300
{{- else -}}
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
{{- with .metadata }}
metadata:
  {{- toYaml . | nindent 2 }}
{{- end }}
spec:
  scaleTargetRef: {{ .target | toJson }}
  minReplicaCount: {{ $values.autoscaling.minReplicas }}
  maxReplicaCount: {{ $values.autoscaling.maxReplicas }}
  cooldownPeriod: 300
  triggers:
    {{- range include "perdure.queues" .root | fromJsonArray }}
    - type: temporal
      metadata:
        endpoint: {{ $values.temporal.address | quote }}
        namespace: {{ $values.temporal.namespace | quote }}
        taskQueue: {{ .name | quote }}
        queueTypes: {{ .types }}
        targetQueueSize: {{ $values.autoscaling.backlog | quote }}
        activationTargetQueueSize: "0"
        {{- with $values.autoscaling.apiKeyVariable }}
        apiKeyFromEnv: {{ . }}
        {{- end }}
    {{- end }}
{{- end }}
{{- end }}

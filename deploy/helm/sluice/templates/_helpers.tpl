{{- define "sluice.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* The roles that run and serve HTTP, as JSON. */}}
{{- define "sluice.roles" -}}
{{- $roles := list "gateway" "reconciler" -}}
{{- range list "query" "console" "maintain" "certifier" "gc" -}}
{{- if (index $.Values .).enabled }}{{ $roles = append $roles . }}{{ end -}}
{{- end -}}
{{- toJson $roles -}}
{{- end }}

{{/* Labels of the objects of one role; the argument is (dict "root" . "role" ROLE). */}}
{{- define "sluice.labels" -}}
{{ include "sluice.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- end }}

{{- define "sluice.selector" -}}
app.kubernetes.io/name: sluice
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .role | kebabcase }}
{{- end }}

{{/* The part of a pod that every role has; the account is that of the role. */}}
{{- define "sluice.podSecurity" -}}
automountServiceAccountToken: false
serviceAccountName: {{ .root.Release.Name }}-{{ .role | kebabcase }}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with .root.Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with (ternary .root.Values.agent.tolerations .root.Values.tolerations (eq .role "agent")) }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- if eq .role "agent" }}
  # The files of pods belong to root. It has no capability.
  runAsUser: 0
  runAsGroup: 0
  {{- else }}
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  {{- end }}
  seccompProfile: { type: RuntimeDefault }
{{- end }}

{{- define "sluice.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end }}

{{- define "sluice.environment" -}}
- { name: SLUICE_STORE, value: {{ .Values.store | quote }} }
- { name: SLUICE_CONFIG, value: /etc/sluice/settings/sluice.toml }
{{- if .Values.credentialsSecret }}
{{- range list "AWS_ACCESS_KEY_ID" "AWS_SECRET_ACCESS_KEY" }}
- name: {{ . }}
  valueFrom: { secretKeyRef: { name: {{ $.Values.credentialsSecret }}, key: {{ . }} } }
{{- end }}
{{- end }}
{{- end }}

{{/* A variable from the secret with the tokens; the argument is (dict "root" . "name" NAME "key" KEY). */}}
{{- define "sluice.tokenVariable" -}}
- name: {{ .name }}
  valueFrom: { secretKeyRef: { name: {{ .root.Values.tokensSecret | quote }}, key: {{ .key }} } }
{{- end }}

{{- define "sluice.mounts" -}}
- { name: home, mountPath: /var/lib/sluice }
- { name: tmp, mountPath: /tmp }
- { name: settings, mountPath: /etc/sluice/settings, readOnly: true }
{{- end }}

{{- define "sluice.volumes" -}}
- { name: home, emptyDir: {} }
- { name: tmp, emptyDir: {} }
- { name: settings, configMap: { name: {{ .Release.Name }}-settings } }
{{- end }}

{{/*
A deployment. The argument is a dict: root, role, args (list), and if needed replicas, environment,
mounts and volumes (text), ports (list of dicts), ready (path), grace (seconds), strategy.
*/}}
{{- define "sluice.deployment" -}}
{{- $values := index .root.Values .role -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ .root.Release.Name }}-{{ .role | kebabcase }}
  labels: {{- include "sluice.labels" . | nindent 4 }}
spec:
  {{- with .replicas }}
  replicas: {{ . }}
  {{- end }}
  {{- with .strategy }}
  strategy: { type: {{ . }} }
  {{- end }}
  selector:
    matchLabels: {{- include "sluice.selector" . | nindent 6 }}
  template:
    metadata:
      labels: {{- include "sluice.selector" . | nindent 8 }}
      annotations:
        checksum/settings: {{ toJson .root.Values.settings | sha256sum }}
    spec:
      {{- include "sluice.podSecurity" . | nindent 6 }}
      terminationGracePeriodSeconds: {{ .grace | default 60 }}
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: topology.kubernetes.io/zone
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels: {{- include "sluice.selector" . | nindent 14 }}
      containers:
        - name: {{ .role | kebabcase }}
          image: {{ include "sluice.image" .root }}
          imagePullPolicy: {{ .root.Values.image.pullPolicy }}
          args: {{- toYaml .args | nindent 12 }}
          env:
            {{- include "sluice.environment" .root | nindent 12 }}
            {{- with .environment }}
            {{- . | nindent 12 }}
            {{- end }}
          {{- with .ports }}
          ports: {{- toYaml . | nindent 12 }}
          {{- end }}
          {{- if .ready }}
          startupProbe: { httpGet: { path: /livez, port: http, scheme: {{ .scheme | default "HTTP" }} }, periodSeconds: 2, failureThreshold: 60 }
          livenessProbe: { httpGet: { path: /livez, port: http, scheme: {{ .scheme | default "HTTP" }} }, periodSeconds: 10, failureThreshold: 6 }
          readinessProbe: { httpGet: { path: {{ .ready }}, port: http, scheme: {{ .scheme | default "HTTP" }} }, periodSeconds: 5 }
          {{- end }}
          resources: {{- toYaml $values.resources | nindent 12 }}
          securityContext: {{- include "sluice.containerSecurity" .root | nindent 12 }}
          volumeMounts:
            {{- include "sluice.mounts" .root | nindent 12 }}
            {{- with .mounts }}
            {{- . | nindent 12 }}
            {{- end }}
      volumes:
        {{- include "sluice.volumes" .root | nindent 8 }}
        {{- with .volumes }}
        {{- . | nindent 8 }}
        {{- end }}
{{- end }}

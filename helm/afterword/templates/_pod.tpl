{{/* The pod of a role or of the server: .root, .component. */}}
{{- define "afterword.pod" -}}
{{- $root := .root -}}
{{- $values := index $root.Values .component -}}
metadata:
  labels:  # without versions: only what changes a pod restarts it
    {{- toYaml (merge (include "afterword.selector" . | fromYaml) $values.podLabels $root.Values.commonLabels) | nindent 4 }}
  annotations:
    {{- $checksum := dict "checksum/settings" (include "afterword.variables" . | sha256sum) }}
    {{- toYaml (merge $checksum $values.podAnnotations $root.Values.commonAnnotations) | nindent 4 }}
spec:
  serviceAccountName: {{ include "afterword.serviceAccountName" $root }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ include "afterword.gracePeriod" . }}
  securityContext:
    {{- toYaml $root.Values.podSecurityContext | nindent 4 }}
  {{- include "afterword.placement" (dict "root" $root "values" $values) | nindent 2 }}
  {{- if $root.Values.topologySpread.enabled }}
  topologySpreadConstraints:
    {{- range $root.Values.topologySpread.topologyKeys }}
    - maxSkew: 1
      topologyKey: {{ . }}
      whenUnsatisfiable: {{ $root.Values.topologySpread.whenUnsatisfiable }}
      labelSelector:
        matchLabels:
          {{- include "afterword.selector" $ | nindent 10 }}
    {{- end }}
  {{- end }}
  {{- $waits := and $root.Values.topics.wait.enabled (ne .component "server") }}
  {{- if or $waits $values.initContainers }}
  initContainers:
    {{- if $waits }}
    {{- include "afterword.topicsWait" . | nindent 4 }}
    {{- end }}
    {{- with $values.initContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- end }}
  containers:
    - name: {{ .component }}
      image: {{ include "afterword.image" $root }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      args: {{ ternary "[serve]" (printf "[worker, %s]" (ternary "all" .component (and $root.Values.singleProcess (eq .component "segmenter")))) (eq .component "server") }}
      envFrom:
        - configMapRef:
            name: {{ include "afterword.fullname" $root }}-{{ .component }}
      env:
        {{- include "afterword.env" . | nindent 8 }}
      ports:
        - name: http
          containerPort: {{ $root.Values.health.port }}
      startupProbe:
        httpGet: {path: /livez, port: http}
        {{- toYaml $root.Values.probes.startup | nindent 8 }}
      livenessProbe:
        httpGet: {path: /livez, port: http}
        {{- toYaml $root.Values.probes.liveness | nindent 8 }}
      readinessProbe:
        httpGet: {path: /readyz, port: http}
        {{- toYaml $root.Values.probes.readiness | nindent 8 }}
      {{- with $values.lifecycle }}
      lifecycle:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      terminationMessagePolicy: FallbackToLogsOnError
      resources:
        {{- toYaml $values.resources | nindent 8 }}
      securityContext:
        {{- toYaml $root.Values.securityContext | nindent 8 }}
      volumeMounts:
        - name: state
          mountPath: /var/lib/afterword
        - name: tmp
          mountPath: /tmp
        {{- include "afterword.filesMount" . | nindent 8 }}
        {{- with $root.Values.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    {{- with $values.sidecars }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  volumes:
    - name: tmp
      emptyDir: {}
    {{- if not (dig "persistence" "enabled" false $values) }}
    - name: state
      emptyDir: {}
    {{- end }}
    {{- include "afterword.filesVolume" . | nindent 4 }}
    {{- with $root.Values.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}

{{/* Which node a pod gets, and how: .root, .values of the role or of the hook. */}}
{{- define "afterword.placement" -}}
{{- $all := .root.Values -}}
{{- $known := dict "imagePullSecrets" $all.imagePullSecrets "schedulerName" $all.schedulerName "runtimeClassName" $all.runtimeClassName -}}
{{- $own := pick .values "priorityClassName" "nodeSelector" "tolerations" "affinity" -}}
{{- range $name, $value := merge $known $own }}
{{- if $value }}
{{ $name }}:
  {{- toYaml $value | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{/* Metadata of a hook's pod: .root, .component, .values. */}}
{{- define "afterword.hookPodMetadata" -}}
labels:
  {{- include "afterword.labels" (merge (dict "labels" .values.podLabels) .) | nindent 2 }}
{{- with merge (dict) .values.podAnnotations .root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The pod of one command: .root, .component, .args, .values; .isHook if it runs before the release's resources. */}}
{{- define "afterword.hookPod" -}}
{{- $root := .root -}}
serviceAccountName: {{ ternary "default" (include "afterword.serviceAccountName" $root) (and .isHook $root.Values.serviceAccount.create) }}
automountServiceAccountToken: false
enableServiceLinks: false
restartPolicy: Never
securityContext:
  {{- toYaml $root.Values.podSecurityContext | nindent 2 }}
{{- include "afterword.placement" . }}
containers:
  - name: {{ .component }}
    image: {{ include "afterword.image" $root }}
    imagePullPolicy: {{ $root.Values.image.pullPolicy }}
    args:
      {{- toYaml .args | nindent 6 }}
    env:  # and not a ConfigMap, which would not be there yet
      {{- include "afterword.env" (merge (dict "variables" (include "afterword.variables" . | fromYaml)) .) | nindent 6 }}
    terminationMessagePolicy: FallbackToLogsOnError
    resources:
      {{- toYaml .values.resources | nindent 6 }}
    securityContext:
      {{- toYaml $root.Values.securityContext | nindent 6 }}
    volumeMounts:
      - name: tmp
        mountPath: /tmp
      - name: tmp
        mountPath: /var/lib/afterword
        subPath: state
      {{- include "afterword.filesMount" . | nindent 6 }}
      {{- with $root.Values.extraVolumeMounts }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
volumes:
  - name: tmp
    emptyDir: {}
  {{- include "afterword.filesVolume" . | nindent 2 }}
  {{- with $root.Values.extraVolumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* The init container of a worker that waits for Kafka and its topics, with all that the worker has: .root, .component. */}}
{{- define "afterword.topicsWait" -}}
{{- $root := .root -}}
- name: topics-wait
  image: {{ include "afterword.image" $root }}
  imagePullPolicy: {{ $root.Values.image.pullPolicy }}
  args: [topics, wait, --timeout, {{ $root.Values.topics.wait.timeoutSeconds | quote }}]
  envFrom:
    - configMapRef: {name: {{ include "afterword.fullname" $root }}-{{ .component }}}
  env: {{- include "afterword.env" . | nindent 4 }}
  terminationMessagePolicy: FallbackToLogsOnError
  resources: {{- toYaml (index $root.Values .component).resources | nindent 4 }}
  securityContext: {{- toYaml $root.Values.securityContext | nindent 4 }}
  volumeMounts:
    - {name: tmp, mountPath: /tmp}
    {{- include "afterword.filesMount" . | nindent 4 }}
    {{- with $root.Values.extraVolumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}

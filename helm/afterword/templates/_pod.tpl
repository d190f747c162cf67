{{/* The pod of a role or of the server: .root, .component. */}}
{{- define "afterword.pod" -}}
{{- $root := .root -}}
{{- $values := index $root.Values .component -}}
metadata:
  labels:  # without versions: only what changes a pod restarts it
    {{- include "afterword.selector" . | nindent 4 }}
    {{- with $root.Values.commonLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- with $values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    checksum/settings: {{ include "afterword.variables" . | sha256sum }}
    {{- with $values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "afterword.serviceAccountName" $root }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ include "afterword.gracePeriod" . }}
  securityContext:
    {{- toYaml $root.Values.podSecurityContext | nindent 4 }}
  {{- with $root.Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with $values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
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
  containers:
    - name: {{ .component }}
      image: {{ include "afterword.image" $root }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      args: {{ ternary "[serve]" (printf "[worker, %s]" .component) (eq .component "server") }}
      envFrom:
        - configMapRef:
            name: {{ include "afterword.fullname" $root }}-{{ .component }}
      env:
        {{- if eq .component "segmenter" }}
        - name: AFTERWORD_KAFKA__GROUP_INSTANCE_ID  # static membership: the pod's name stays the same
          valueFrom:
            fieldRef:
              fieldPath: metadata.name
        {{- end }}
        {{- include "afterword.references" . | nindent 8 }}
        {{- with concat $root.Values.extraEnv $values.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
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

{{/* The pod of a hook, which runs one command before or after installation: .root, .component, .args, .resources. */}}
{{- define "afterword.hookPod" -}}
{{- $root := .root -}}
serviceAccountName: {{ ternary "default" (include "afterword.serviceAccountName" $root) $root.Values.serviceAccount.create }}
automountServiceAccountToken: false
enableServiceLinks: false
restartPolicy: Never
securityContext:
  {{- toYaml $root.Values.podSecurityContext | nindent 2 }}
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
containers:
  - name: {{ .component }}
    image: {{ include "afterword.image" $root }}
    imagePullPolicy: {{ $root.Values.image.pullPolicy }}
    args:
      {{- toYaml .args | nindent 6 }}
    env:  # and not a ConfigMap, which would not be there yet
      {{- range $name, $value := include "afterword.variables" . | fromYaml }}
      - name: {{ $name }}
        value: {{ $value | quote }}
      {{- end }}
      {{- include "afterword.references" . | nindent 6 }}
      {{- with $root.Values.extraEnv }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
    resources:
      {{- toYaml .resources | nindent 6 }}
    securityContext:
      {{- toYaml $root.Values.securityContext | nindent 6 }}
    volumeMounts:
      - name: tmp
        mountPath: /tmp
      - name: tmp
        mountPath: /var/lib/afterword
        subPath: state
      {{- include "afterword.filesMount" . | nindent 6 }}
volumes:
  - name: tmp
    emptyDir: {}
  {{- include "afterword.filesVolume" . | nindent 2 }}
{{- end }}

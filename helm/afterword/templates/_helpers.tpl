{{- define "afterword.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{/* 40 characters, because names of pods and claims are longer. */}}
{{- define "afterword.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains (include "afterword.name" .) .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "afterword.name" .) | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "afterword.selector" -}}
app.kubernetes.io/name: {{ include "afterword.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* Labels without the version, for templates of claims, which are immutable. */}}
{{- define "afterword.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{ include "afterword.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: afterword
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "afterword.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "afterword.serviceAccountName" -}}
{{- $account := .Values.serviceAccount -}}
{{- $account.name | default (ternary (include "afterword.fullname" .) "default" $account.create) -}}
{{- end }}

{{/* Roles of workers that run, separated by spaces. */}}
{{- define "afterword.roles" -}}
{{- range list "segmenter" "summarizer" "archiver" "webhooks" }}{{ if (index $.Values .).enabled }}{{ . }} {{ end }}{{ end -}}
{{- end }}

{{/* What runs: the roles of workers, and the server. */}}
{{- define "afterword.components" -}}
{{- include "afterword.roles" . }}{{ if .Values.server.enabled }}server{{ end -}}
{{- end }}

{{/* Effective settings of a component, as YAML: those of all roles, overridden by those of its role. */}}
{{- define "afterword.settings" -}}
{{- $own := dig .component "settings" dict (.root.Values | merge dict) -}}
{{- $settings := mergeOverwrite (deepCopy .root.Values.settings) (deepCopy $own) -}}
{{- include "afterword.requireModels" (dict "root" .root "component" .component "settings" $settings) -}}
{{- if eq .component "server" -}}
{{- include "afterword.requireAuth" (dict "root" .root "settings" $settings) -}}
{{- end -}}
{{- toYaml $settings -}}
{{- end }}

{{/* Refuse a provider without a model, which no schema can: both may be of all roles or of one. */}}
{{- define "afterword.requireModels" -}}
{{- $withheld := include "afterword.withheld" . | splitList " " -}}
{{- range $section := list "llm" "embedder" -}}
{{- $given := get $.settings $section | default dict -}}
{{- $secret := and (not (has $section $withheld)) (dig $section "model" false $.root.Values.secrets) -}}
{{- if and (has (get $given "provider") (list "openai" "ollama")) (not (get $given "model")) (not $secret) -}}
{{- fail (printf "settings.%s.model is required with settings.%s.provider = %s" $section $section (get $given "provider")) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Refuse a server that admits everybody, and one that checks tokens without knowing whose. */}}
{{- define "afterword.requireAuth" -}}
{{- $serve := .settings.serve | default dict -}}
{{- $auth := get $serve "auth" | default "none" -}}
{{- if eq $auth "none" -}}
{{- fail "server.settings.serve.auth must be keys or jwt: in a cluster the server does not start with none" -}}
{{- end -}}
{{- range $name := ternary (list "jwt_issuer" "jwt_audience" "jwt_jwks_url") list (eq $auth "jwt") -}}
{{- if not (or (get $serve $name) (dig "serve" $name false $.root.Values.secrets)) -}}
{{- fail (printf "server.settings.serve.%s is required with server.settings.serve.auth = jwt" $name) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Value of an environment variable: whole numbers without an exponent, lists as JSON. */}}
{{- define "afterword.value" -}}
{{- if kindIs "float64" . -}}
{{- ternary (int64 . | toString) (toString .) (eq . (floor .)) -}}
{{- else if or (kindIs "slice" .) (kindIs "map" .) -}}
{{- toJson . -}}
{{- else -}}
{{- toString . -}}
{{- end -}}
{{- end }}

{{/* Variables without secrets, as a map. */}}
{{- define "afterword.variables" -}}
{{- $health := .root.Values.health -}}
AFTERWORD_HEALTH__HOST: {{ $health.host | quote }}
AFTERWORD_HEALTH__PORT: {{ $health.port | quote }}
{{- if eq .component "server" }}
AFTERWORD_SERVE__HOST: {{ $health.host | quote }}
AFTERWORD_SERVE__PORT: {{ $health.port | quote }}
{{- end }}
AFTERWORD_STATE_DIR: /var/lib/afterword/state
{{- range $name, $value := include "afterword.settings" . | fromYaml }}
{{- if kindIs "map" $value }}
{{- range $key, $inner := $value }}
AFTERWORD_{{ upper $name }}__{{ upper $key }}: {{ include "afterword.value" $inner | quote }}
{{- end }}
{{- else }}
AFTERWORD_{{ upper $name }}: {{ include "afterword.value" $value | quote }}
{{- end }}
{{- end }}
{{- end }}

{{/* Sections whose secrets and files a component does not need, and does not get. */}}
{{- define "afterword.withheld" -}}
{{- if eq .component "summarizer" -}}
serve webhooks
{{- else if eq .component "archiver" -}}
qdrant llm embedder serve webhooks
{{- else if eq .component "server" -}}
llm webhooks
{{- else if eq .component "webhooks" -}}
{{- /* sealed summaries are opened with the users' keys, which are in MongoDB */ -}}
{{ if not (dig "crypto" "key" false .root.Values.secrets) }}mongo {{ end }}qdrant llm embedder serve
{{- else -}}
mongo qdrant llm embedder serve webhooks
{{- end -}}
{{- end }}

{{/* Variables from Secrets, and those that name a mounted file, as a list. */}}
{{- define "afterword.references" -}}
{{- $withheld := include "afterword.withheld" . | splitList " " }}
{{- range $section, $settings := .root.Values.secrets }}
{{- if not (has $section $withheld) }}
{{- range $setting, $from := $settings }}
- name: AFTERWORD_{{ upper $section }}__{{ upper $setting }}
  valueFrom:
    secretKeyRef:
      name: {{ $from.existingSecret }}
      key: {{ $from.key | default $setting }}
{{- end }}
{{- end }}
{{- end }}
{{- range $section, $settings := .root.Values.files }}
{{- if not (has $section $withheld) }}
{{- range $setting, $_ := $settings }}
- name: AFTERWORD_{{ upper $section }}__{{ upper $setting }}
  value: /etc/afterword/{{ $section }}/{{ $setting }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* A volume with your files, at the paths in the variables. */}}
{{- define "afterword.filesVolume" -}}
{{- $withheld := include "afterword.withheld" . | splitList " " }}
{{- if .root.Values.files }}
- name: files
  projected:
    defaultMode: 0440
    sources:
      {{- range $section, $settings := .root.Values.files }}
      {{- if not (has $section $withheld) }}
      {{- range $setting, $from := $settings }}
      - {{ ternary "secret" "configMap" (hasKey $from "existingSecret") }}:
          name: {{ $from.existingSecret | default $from.existingConfigMap }}
          items:
            - key: {{ $from.key | default $setting }}
              path: {{ $section }}/{{ $setting }}
      {{- end }}
      {{- end }}
      {{- end }}
{{- end }}
{{- end }}

{{- define "afterword.filesMount" -}}
{{- if .root.Values.files }}
- name: files
  mountPath: /etc/afterword
  readOnly: true
{{- end }}
{{- end }}

{{/* After draining, the process exits within four seconds; the rest is for the container runtime. */}}
{{- define "afterword.gracePeriod" -}}
{{- $settings := include "afterword.settings" . | fromYaml -}}
{{- add (ceil $settings.drain_seconds) 15 -}}
{{- end }}

{{/* More pods than partitions would be idle. */}}
{{- define "afterword.validate" -}}
{{- $partitions := int .Values.settings.kafka.partitions -}}
{{- range $role := include "afterword.roles" . | trim | splitList " " | compact -}}
{{- $values := index $.Values $role -}}
{{- if and (eq $values.autoscaling.kind "none") (gt (int $values.replicas) $partitions) -}}
{{- fail (printf "%s.replicas (%d) is more than settings.kafka.partitions (%d): the rest would have nothing to do" $role (int $values.replicas) $partitions) -}}
{{- end -}}
{{- if and (ne $values.autoscaling.kind "none") (gt (int $values.autoscaling.maxReplicas) $partitions) -}}
{{- fail (printf "%s.autoscaling.maxReplicas (%d) is more than settings.kafka.partitions (%d): the rest would have nothing to do" $role (int $values.autoscaling.maxReplicas) $partitions) -}}
{{- end -}}
{{- if hasKey (dig "settings" "kafka" dict $values) "partitions" -}}
{{- fail (printf "%s.settings.kafka.partitions: partitions are for all roles; set settings.kafka.partitions" $role) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.server.enabled .Values.server.ingress.enabled (not .Values.server.ingress.hosts) -}}
{{- fail "server.ingress.hosts is required with server.ingress.enabled: the server must not answer to every name" -}}
{{- end -}}
{{- if and .Values.server.enabled .Values.server.httpRoute.enabled (not .Values.server.httpRoute.parentRefs) -}}
{{- fail "server.httpRoute.parentRefs is required with server.httpRoute.enabled" -}}
{{- end -}}
{{- if and .Values.webhooks.enabled (not (dig "webhooks" "endpoints" false .Values.secrets)) -}}
{{- fail "webhooks.enabled needs secrets.webhooks.endpoints: endpoints and their secrets, as JSON in a Secret" -}}
{{- end -}}
{{- if and (or (eq .Values.topics.provisioner "strimzi") .Values.strimzi.user.enabled) (not .Values.strimzi.cluster) -}}
{{- fail "strimzi.cluster is required with topics.provisioner = strimzi and with strimzi.user.enabled" -}}
{{- end -}}
{{- end }}

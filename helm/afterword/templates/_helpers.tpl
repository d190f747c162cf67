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
app.kubernetes.io/name: {{ include "afterword.name" .root | quote }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* Labels of a resource: .root, .component, and its own .labels. The chart's take precedence, so no key occurs twice. */}}
{{- define "afterword.labels" -}}
{{- $ours := include "afterword.selector" . | fromYaml -}}
{{- $_ := set $ours "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_") -}}
{{- $_ := set $ours "app.kubernetes.io/version" .root.Chart.AppVersion -}}
{{- $_ := set $ours "app.kubernetes.io/part-of" "afterword" -}}
{{- $_ := set $ours "app.kubernetes.io/managed-by" .root.Release.Service -}}
{{- toYaml (merge $ours (.labels | default dict) .root.Values.commonLabels) -}}
{{- end }}

{{/* Metadata of a resource: .root, .component, .labels, .annotations, and .name, by default the component's. */}}
{{- define "afterword.metadata" -}}
name: {{ .name | default (printf "%s-%s" (include "afterword.fullname" .root) .component) | quote }}
namespace: {{ .root.Release.Namespace | quote }}
labels:
  {{- include "afterword.labels" . | nindent 2 }}
{{- with merge (dict) (.annotations | default dict) .root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
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

{{/* Enabled worker roles that have pods of their own, separated by spaces. */}}
{{- define "afterword.roles" -}}
{{- $inOther := ternary (list "summarizer" "archiver") list .Values.singleProcess -}}
{{- range (.Files.Get "topics.yaml" | fromYaml).roles -}}
{{- if and (index $.Values .).enabled (not (has . $inOther)) }}{{ . }} {{ end -}}
{{- end -}}
{{- end }}

{{/* Everything that is enabled: worker roles and the server. */}}
{{- define "afterword.components" -}}
{{- include "afterword.roles" . }}{{ if .Values.server.enabled }}server{{ end -}}
{{- end }}

{{/* Effective settings of a component, as YAML: those of all roles, overridden by those of its role. */}}
{{- define "afterword.settings" -}}
{{- $own := dig .component "settings" dict (.root.Values | merge dict) -}}
{{- $settings := mergeOverwrite (deepCopy .root.Values.settings) (deepCopy $own) -}}
{{- if eq .component "server" -}}
{{- include "afterword.requireAuth" $settings -}}
{{- end -}}
{{- if has "registry" (include "afterword.withheld" . | splitList " ") -}}
{{- $_ := unset $settings "registry" -}}{{/* this role does not get the registry's password, and a user name without one stops the start */}}
{{- end -}}
{{- include "afterword.crossFields" (merge (dict "settings" $settings) .) -}}
{{- toYaml $settings -}}
{{- end }}

{{/* Refuse a server without authentication. */}}
{{- define "afterword.requireAuth" -}}
{{- if eq (dig "serve" "auth" "none" .) "none" -}}
{{- fail "server.settings.serve.auth must be keys or jwt: in a cluster the server does not start with none" -}}
{{- end -}}
{{- end }}

{{/* Names in .section that this component gets from Secrets, files or extraEnv, as a map to true. */}}
{{- define "afterword.elsewhere" -}}
{{- $names := dict -}}
{{- if not (has .section (include "afterword.withheld" . | splitList " ")) -}}
{{- range $place := list .root.Values.secrets .root.Values.files -}}
{{- range $name, $_ := dig $.section dict ($place | merge dict) -}}
{{- $_ := set $names $name true -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range concat .root.Values.extraEnv (dig .component "extraEnv" list (.root.Values | merge dict)) -}}
{{- $prefix := printf "AFTERWORD_%s__" (upper $.section) -}}
{{- if hasPrefix $prefix .name -}}
{{- $_ := set $names (.name | trimPrefix $prefix | trimSuffix "_FILE" | lower) true -}}
{{- end -}}
{{- end -}}
{{- toYaml $names -}}
{{- end }}

{{/* Refuse settings that exclude or need each other, as streams/settings.py does: .root, .component, .settings.
     The rules are generated. A value that is unknown here, because it is in a Secret, decides nothing. */}}
{{- define "afterword.crossFields" -}}
{{- $known := .root.Files.Get "cross_fields.yaml" | fromYaml -}}
{{- range $rule := $known.rules -}}
{{- $section := $rule.section -}}
{{- $elsewhere := include "afterword.elsewhere" (merge (dict "section" $section) $) | fromYaml -}}
{{- $values := deepCopy (index $known.defaults $section | default dict) -}}
{{- $given := deepCopy $elsewhere -}}
{{- range $name, $value := get $.settings $section | default dict -}}
{{- if not (or (kindIs "invalid" $value) (eq (toString $value) "")) -}}
{{- $_ := set $values $name $value -}}
{{- $_ := set $given $name true -}}
{{- end -}}
{{- end -}}
{{- range $name, $_ := $elsewhere -}}
{{- $_ := unset $values $name -}}
{{- end -}}
{{- $applies := true -}}
{{- $why := list -}}
{{- $own := keys (dig $.component "settings" $section dict ($.root.Values | merge dict)) -}}
{{- $isOwn := false -}}
{{- range concat (keys ($rule.when | default dict)) ($rule.refuses | default list) -}}
{{- $isOwn = or $isOwn (has . $own) -}}
{{- end -}}
{{- $prefix := printf "%ssettings.%s" (ternary (printf "%s." $.component) "" $isOwn) $section -}}
{{- range $name, $choices := $rule.when | default dict -}}
{{- $applies = and $applies (has (get $values $name) $choices) -}}
{{- $why = append $why (printf "%s.%s = %v" $prefix $name (get $values $name)) -}}
{{- end -}}
{{- range $name := $rule.without | default list -}}
{{- $applies = and $applies (not (hasKey $given $name)) -}}
{{- $why = append $why (printf "no %s.%s" $prefix $name) -}}
{{- end -}}
{{- if $applies -}}
{{- range $name := $rule.needs | default list -}}
{{- if not (hasKey $given $name) -}}
{{- fail (printf "%s.%s is required with %s (a value, or from secrets.%s or files.%s)" $prefix $name (join " and " $why) $section $section) -}}
{{- end -}}
{{- end -}}
{{- range $name := $rule.refuses | default list -}}
{{- if hasKey $given $name -}}
{{- fail (printf "%s.%s has no use with %s" $prefix $name (join " and " $why)) -}}
{{- end -}}
{{- end -}}
{{- with $rule.most -}}
{{- if and (hasKey $values .smaller) (hasKey $values .larger) -}}
{{- if gt (mulf (get $values .smaller) .fraction_of) (mulf (get $values .larger) 1) -}}
{{- $part := ternary "" (printf "1/%v of " .fraction_of) (eq (int .fraction_of) 1) -}}
{{- fail (printf "%s.%s (%v) is larger than %s%s.%s (%v)" $prefix .smaller (get $values .smaller) $part $prefix .larger (get $values .larger)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Value of an environment variable: integers without an exponent, lists as JSON. */}}
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

{{/* Sections whose secrets and files a component does not need, and so does not get. */}}
{{- define "afterword.withheld" -}}
{{- if or (eq .component "summarizer") (and (eq .component "segmenter") .root.Values.singleProcess) -}}
reranker serve webhooks ingest registry
{{- else if eq .component "archiver" -}}
qdrant llm embedder reranker serve webhooks ingest registry
{{- else if eq .component "server" -}}
llm webhooks registry
{{- else if eq .component "webhooks" -}}
qdrant llm embedder reranker serve ingest registry
{{- else if eq .component "ingest" -}}
mongo qdrant llm embedder reranker serve webhooks
{{- else if eq .component "topics" -}}
mongo qdrant llm embedder reranker serve webhooks registry
{{- else -}}
mongo qdrant llm embedder reranker serve webhooks ingest registry
{{- end -}}
{{- end }}

{{/* Variables of a container in addition to its ConfigMap, as a list in which each name occurs once, as the API server
     requires. Later sources win: the chart, Secrets and files, extraEnv, the role's extraEnv. .variables adds settings. */}}
{{- define "afterword.env" -}}
{{- $found := dict -}}
{{- $order := list -}}
{{- $all := list -}}
{{- range $name, $value := .variables | default dict -}}
{{- $all = append $all (dict "name" $name "value" $value) -}}
{{- end -}}
{{- if eq .component "segmenter" -}}
{{- /* static membership, because the pod's name stays the same */ -}}
{{- $field := dict "fieldRef" (dict "fieldPath" "metadata.name") -}}
{{- $all = append $all (dict "name" "AFTERWORD_KAFKA__GROUP_INSTANCE_ID" "valueFrom" $field) -}}
{{- end -}}
{{- $all = concat $all (include "afterword.references" . | fromYamlArray) -}}
{{- $all = concat $all .root.Values.extraEnv (dig .component "extraEnv" list (.root.Values | merge dict)) -}}
{{- range $all -}}
{{- if not (hasKey $found .name) -}}
{{- $order = append $order .name -}}
{{- end -}}
{{- $_ := set $found .name . -}}
{{- end -}}
{{- $unique := list -}}
{{- range $order -}}
{{- $unique = append $unique (get $found .) -}}
{{- end -}}
{{- toYaml $unique -}}
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
      name: {{ $from.existingSecret | quote }}
      key: {{ $from.key | default $setting | quote }}
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
          name: {{ $from.existingSecret | default $from.existingConfigMap | quote }}
          items:
            - key: {{ $from.key | default $setting | quote }}
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

{{/* Number of pods of a component. If a scaler owns it, there is none if the release never had one, else the number that
     runs now: otherwise the upgrade that hands the number over, and every later one, would start again from one. Whether
     the release had one is an annotation, because a rollback to a revision without a number would also start from one. */}}
{{- define "afterword.replicas" -}}
{{- $values := index .root.Values .component -}}
{{- if eq $values.autoscaling.kind "none" -}}
replicas: {{ $values.replicas }}
{{- else -}}
{{- $kind := ternary "StatefulSet" "Deployment" (eq .component "segmenter") -}}
{{- $name := printf "%s-%s" (include "afterword.fullname" .root) .component -}}
{{- $running := lookup "apps/v1" $kind .root.Release.Namespace $name -}}
{{- $annotations := dig "metadata" "annotations" dict $running -}}
{{- if and (hasKey ($running.spec | default dict) "replicas") (ne (get $annotations "afterword/replicas") "scaler") -}}
replicas: {{ int $running.spec.replicas }}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "afterword.scaled" -}}
{{- if not (include "afterword.replicas" .) -}}
afterword/replicas: scaler
{{- end -}}
{{- end }}

{{/* A Kubernetes quantity, such as 10Gi, in bytes. */}}
{{- define "afterword.bytes" -}}
{{- $units := dict "" 1.0 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 "Pi" 1125899906842624.0 -}}
{{- $number := regexFind "^[0-9.]+" . -}}
{{- mulf (float64 $number) (get $units (trimPrefix $number .)) | int64 -}}
{{- end }}

{{/* Refuse combinations that cannot work, however valid each setting is by itself. */}}
{{- define "afterword.validate" -}}
{{- if .Values.singleProcess -}}
{{- if not .Values.segmenter.enabled -}}
{{- fail "singleProcess needs segmenter.enabled: the process runs in the segmenter's pods" -}}
{{- end -}}
{{- range $role := list "summarizer" "archiver" -}}
{{- if or (index $.Values $role).settings (index $.Values $role).extraEnv -}}
{{- fail (printf "%s.settings and %s.extraEnv have no effect with singleProcess; use those of segmenter" $role $role) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $partitions := int .Values.settings.kafka.partitions -}}
{{- $shared := keys (.Files.Get "topics.yaml" | fromYaml).names | sortAlpha -}}
{{- range $role := include "afterword.roles" . | trim | splitList " " | compact -}}
{{- $values := index $.Values $role -}}
{{- if and (eq $values.autoscaling.kind "none") (gt (int $values.replicas) $partitions) -}}
{{- fail (printf "%s.replicas (%d) is more than settings.kafka.partitions (%d): the rest would have nothing to do" $role (int $values.replicas) $partitions) -}}
{{- end -}}
{{- if and (ne $values.autoscaling.kind "none") (gt (int $values.autoscaling.maxReplicas) $partitions) -}}
{{- fail (printf "%s.autoscaling.maxReplicas (%d) is more than settings.kafka.partitions (%d): the rest would have nothing to do" $role (int $values.autoscaling.maxReplicas) $partitions) -}}
{{- end -}}
{{- end -}}
{{- range $component := include "afterword.components" . | trim | splitList " " | compact -}}
{{- $values := index $.Values $component -}}
{{- $scaling := $values.autoscaling -}}
{{- if and (ne $scaling.kind "none") (gt (int $scaling.minReplicas) (int $scaling.maxReplicas)) -}}
{{- fail (printf "%s.autoscaling.minReplicas (%d) is more than maxReplicas (%d)" $component (int $scaling.minReplicas) (int $scaling.maxReplicas)) -}}
{{- end -}}
{{- if and (eq $scaling.kind "hpa") (lt (int $scaling.minReplicas) 1) -}}
{{- fail (printf "%s.autoscaling.minReplicas = 0 needs autoscaling.kind = keda" $component) -}}
{{- end -}}
{{- $own := dig "settings" "kafka" dict ($values | merge dict) -}}
{{- range $name := concat (list "partitions" "replication_factor" "min_insync_replicas") $shared -}}
{{- if and (hasKey $own $name) (ne (toString (get $own $name)) (toString (get $.Values.settings.kafka $name))) -}}
{{- fail (printf "%s.settings.kafka.%s: topics, groups and their users are for all roles; set settings.kafka.%s" $component $name $name) -}}
{{- end -}}
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
{{- if and .Values.ingest.enabled (not (dig "ingest" "file" false .Values.files)) -}}
{{- fail "ingest.enabled needs files.ingest.file: the TOML file of its sources, in a ConfigMap" -}}
{{- end -}}
{{- if and (or (eq .Values.topics.provisioner "strimzi") .Values.strimzi.user.enabled) (not .Values.strimzi.cluster) -}}
{{- fail "strimzi.cluster is required with topics.provisioner = strimzi and with strimzi.user.enabled" -}}
{{- end -}}
{{- end }}

{{/* Refuse other partitions for a KafkaTopic that is there, as `afterword topics create` does: keys would move to other
     partitions while messages of their conversations are pending. .name of the KafkaTopic. */}}
{{- define "afterword.requireSamePartitions" -}}
{{- $topic := lookup .root.Values.strimzi.apiVersion "KafkaTopic" .root.Release.Namespace .name -}}
{{- $has := dig "spec" "partitions" 0 ($topic | default dict) | int -}}
{{- $wanted := int .root.Values.settings.kafka.partitions -}}
{{- if and $has (ne $has $wanted) -}}
{{- fail (printf "settings.kafka.partitions (%d): KafkaTopic %s has %d; a change moves conversations whose messages are pending, and loses them. See docs/how-to/scale.md" $wanted .name $has) -}}
{{- end -}}
{{- end }}

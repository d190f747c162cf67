"""Miswirings of the chart, made on purpose: each changes one place of one template, and has to be noticed."""

import shutil
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Mutant:
    what: str
    file: str
    """Template, below `templates`."""
    old: str
    new: str
    values: str = "everything"
    """File of values in `ci` with which it shows."""

    def planted(self, chart: Path, place: Path) -> Path:
        """A copy of the chart with the miswiring. Raises: AssertionError when the template has no such text."""
        copy = shutil.copytree(chart, place / "afterword")
        template = copy / "templates" / self.file
        text = template.read_text()
        assert self.old in text, f"{self.file} has no {self.old!r}: the mutant is of an earlier chart"
        template.write_text(text.replace(self.old, self.new, 1))
        return copy


PLAIN = 'include "afterword.selector" $it | nindent'
MUTANTS = (
    # selectors
    Mutant(
        "Deployment selects other labels",
        "deployments.yaml",
        PLAIN + " 6",
        'include "afterword.selector" (dict "root" $ "component" "segmenter") | nindent 6',
    ),
    Mutant(
        "StatefulSet selects other labels",
        "segmenter.yaml",
        PLAIN + " 6",
        'include "afterword.selector" (dict "root" . "component" "server") | nindent 6',
    ),
    Mutant(
        "NetworkPolicy selects nothing",
        "networkpolicy.yaml",
        "app.kubernetes.io/instance: {{ .Release.Name | quote }}",
        "app.kubernetes.io/instance: {{ .Chart.Name }}",
    ),
    Mutant(
        "NetworkPolicy of the server selects all",
        "networkpolicy.yaml",
        '{{- include "afterword.selector" $it | nindent 6 }}',
        "app.kubernetes.io/instance: {{ .Release.Name | quote }}",
    ),
    Mutant(
        "PodDisruptionBudget selects nothing",
        "poddisruptionbudgets.yaml",
        PLAIN,
        'include "afterword.selector" (dict "root" $ "component" "workers") | nindent',
    ),
    Mutant(
        "ServiceMonitor selects nothing",
        "monitoring.yaml",
        "app.kubernetes.io/instance: {{ .Release.Name | quote }}",
        "app.kubernetes.io/instance: {{ .Release.Namespace }}",
    ),
    Mutant(
        "Service of a role leads nowhere",
        "services.yaml",
        PLAIN,
        'include "afterword.selector" (dict "root" $ "component" "worker") | nindent',
    ),
    Mutant(
        "Service of the server leads to workers",
        "services.yaml",
        '{{- $it := dict "root" . "component" "server" }}',
        '{{- $it := dict "root" . "component" "archiver" }}',
    ),
    Mutant(
        "pods are spread by others' labels",
        "_pod.tpl",
        '{{- include "afterword.selector" $ | nindent 10 }}',
        "app.kubernetes.io/instance: {{ $root.Release.Name }}",
    ),
    # references
    Mutant(
        "envFrom names another role's ConfigMap",
        "_pod.tpl",
        '{{ include "afterword.fullname" $root }}-{{ .component }}',
        '{{ include "afterword.fullname" $root }}-summarizer',
    ),
    Mutant(
        "envFrom names no ConfigMap",
        "_pod.tpl",
        '{{ include "afterword.fullname" $root }}-{{ .component }}',
        "{{ .component }}",
    ),
    Mutant(
        "serviceName names no Service",
        "segmenter.yaml",
        'serviceName: {{ include "afterword.fullname" . }}-segmenter',
        'serviceName: {{ include "afterword.fullname" . }}',
    ),
    Mutant(
        "autoscaler targets nothing",
        "autoscaling.yaml",
        "    apiVersion: apps/v1\n    kind: {{ $kind }}\n    name: {{ $name }}",
        "    apiVersion: apps/v1\n    kind: {{ $kind }}\n    name: {{ $role }}",
    ),
    Mutant("KEDA targets a StatefulSet", "autoscaling.yaml", "    kind: {{ $kind }}", "    kind: StatefulSet"),
    Mutant(
        "Ingress leads to another Service",
        "routes.yaml",
        "                name: {{ $name }}",
        '                name: {{ include "afterword.fullname" $ }}',
    ),
    Mutant(
        "HTTPRoute leads to another Service",
        "routes.yaml",
        "        - name: {{ $name }}",
        '        - name: {{ include "afterword.fullname" $ }}-segmenter',
    ),
    Mutant(
        "service account is not there",
        "serviceaccount.yaml",
        '"name" (include "afterword.serviceAccountName" .)',
        '"name" "workers"',
    ),
    Mutant(
        "hook runs as an account that comes later",
        "_pod.tpl",
        "(and .isHook $root.Values.serviceAccount.create)",
        "false",
    ),
    Mutant(
        "state is not mounted",
        "_pod.tpl",
        "        - name: state\n          mountPath: /var/lib/afterword\n",
        "        - name: tmp\n          mountPath: /var/lib/afterword\n",
    ),
    Mutant("files are mounted elsewhere", "_helpers.tpl", "mountPath: /etc/afterword", "mountPath: /etc/files"),
    Mutant("a file has another path", "_helpers.tpl", "path: {{ $section }}/{{ $setting }}", "path: {{ $setting }}"),
    Mutant(
        "a Secret's key is the setting's",
        "_helpers.tpl",
        "key: {{ $from.key | default $setting | quote }}\n{{- end }}",
        "key: {{ $setting }}\n{{- end }}",
    ),
    Mutant(
        "the segmenter is given MongoDB's URI",
        "_helpers.tpl",
        "mongo qdrant llm embedder reranker serve webhooks\n{{- end -}}",
        "qdrant llm embedder reranker serve webhooks\n{{- end -}}",
    ),
    Mutant(
        "hooks without secrets",
        "_pod.tpl",
        '(merge (dict "variables" (include "afterword.variables" . | fromYaml)) .)',
        '(dict "root" (dict "Values" (merge (dict "secrets" dict) (omit .root.Values "secrets"))) '
        '"component" .component "variables" (include "afterword.variables" . | fromYaml))',
    ),
    Mutant(
        "hooks without settings", "_pod.tpl", '(dict "variables" (include "afterword.variables" . | fromYaml))', "dict"
    ),
    Mutant("a variable is there twice", "_helpers.tpl", "{{- toYaml $unique -}}", "{{- toYaml $all -}}"),
    Mutant(
        "a role's extraEnv is lost",
        "_helpers.tpl",
        'concat $all .root.Values.extraEnv (dig .component "extraEnv" list (.root.Values | merge dict))',
        "concat $all .root.Values.extraEnv",
    ),
    # ports and probes
    Mutant("Service leads to a port that is not there", "services.yaml", "targetPort: http", "targetPort: metrics"),
    Mutant(
        "container declares another port",
        "_pod.tpl",
        "containerPort: {{ $root.Values.health.port }}",
        "containerPort: 8080",
    ),
    Mutant("port has another name", "_pod.tpl", "- name: http\n", "- name: health\n"),
    Mutant("NetworkPolicy opens another port", "networkpolicy.yaml", "          port: http", "          port: 8080"),
    Mutant("ServiceMonitor scrapes another port", "monitoring.yaml", "- port: http", "- port: metrics"),
    Mutant("ServiceMonitor scrapes another path", "monitoring.yaml", "path: /metrics", "path: /"),
    Mutant("readiness asks whether it lives", "_pod.tpl", "path: /readyz", "path: /livez"),
    Mutant(
        "probe asks another port",
        "_pod.tpl",
        "httpGet: {path: /livez, port: http}",
        "httpGet: {path: /livez, port: 8080}",
    ),
    Mutant(
        "HTTPRoute leads to another port",
        "routes.yaml",
        "port: {{ .Values.server.service.port }}",
        "port: {{ .Values.health.port }}",
    ),
    Mutant(
        "the server listens elsewhere",
        "_helpers.tpl",
        "AFTERWORD_SERVE__PORT: {{ $health.port | quote }}",
        'AFTERWORD_SERVE__PORT: "8080"',
    ),
    # values that do not arrive
    Mutant("no resources", "_pod.tpl", "{{- toYaml $values.resources | nindent 8 }}", "{}"),
    Mutant("hooks without resources", "_pod.tpl", "{{- toYaml .values.resources | nindent 6 }}", "{}"),
    Mutant("no tolerations", "_pod.tpl", '"nodeSelector" "tolerations" "affinity"', '"nodeSelector" "affinity"'),
    Mutant("no node selector", "_pod.tpl", '"nodeSelector" "tolerations" "affinity"', '"tolerations" "affinity"'),
    Mutant("hooks cannot be placed", "_pod.tpl", '{{- include "afterword.placement" . }}', ""),
    Mutant("no security context", "_pod.tpl", "{{- toYaml $root.Values.securityContext | nindent 8 }}", "{}"),
    Mutant("pods may be root", "_pod.tpl", "{{- toYaml $root.Values.podSecurityContext | nindent 4 }}", "{}"),
    Mutant(
        "pods have a token", "_pod.tpl", "automountServiceAccountToken: false", "automountServiceAccountToken: true"
    ),
    Mutant(
        "claims are kept as Kubernetes likes",
        "segmenter.yaml",
        "  persistentVolumeClaimRetentionPolicy:\n    {{- toYaml $persistence.retention | nindent 4 }}\n",
        "",
    ),
    Mutant("claims of another size", "segmenter.yaml", "storage: {{ $persistence.size }}", "storage: 10Gi"),
    Mutant("claims of the default class", "segmenter.yaml", "storageClassName: {{ . }}", "# storageClassName"),
    Mutant("budget without its number", "poddisruptionbudgets.yaml", "{{ $budget.maxUnavailable }}", "1"),
    Mutant(
        "KEDA measures the wrong topic",
        "autoscaling.yaml",
        '(eq $role "summarizer") }}\n    {{- range',
        '(eq $role "segmenter") }}\n    {{- range',
    ),
    Mutant("KEDA measures another group", "autoscaling.yaml", '(printf "%s_id" $role)', '"segmenter_id"'),
    Mutant("KEDA takes what nobody has begun for work", "autoscaling.yaml", '"earliest"', '"latest"'),
    Mutant(
        "KEDA measures without keda.metadata",
        "autoscaling.yaml",
        "mergeOverwrite $measured $.Values.keda.metadata",
        "$measured",
    ),
    Mutant(
        "nobody wakes for what expires",
        "autoscaling.yaml",
        "(int $scaling.minReplicas) 0",
        "(int $scaling.minReplicas) 1",
    ),
    Mutant(
        "summarizer wakes at another time",
        "autoscaling.yaml",
        "$.Values.keda.sweep",
        '(dict "timezone" "Etc/UTC" "start" "0 3 * * *" "end" "30 3 * * *")',
    ),
    Mutant("summarizer wakes without a pod", "autoscaling.yaml", 'desiredReplicas: "1"', 'desiredReplicas: "0"'),
    Mutant(
        "KEDA has no password", "autoscaling.yaml", "{{- with $.Values.keda.authenticationRef }}", "{{- with false }}"
    ),
    Mutant(
        "a scaled role has a number of pods",
        "_helpers.tpl",
        '{{- if eq $values.autoscaling.kind "none" -}}\nreplicas',
        "{{- if true -}}\nreplicas",
    ),
    Mutant("no time to drain", "_helpers.tpl", "add (ceil $settings.drain_seconds) 15", "add 15 15"),
    Mutant("settings restart no pod", "_pod.tpl", '"checksum/settings"', '"checksum"'),
    Mutant("a role that is off runs", "deployments.yaml", "{{- if $values.enabled }}", "{{- if true }}", "small"),
    Mutant(
        "the archiver runs the summarizer", "_pod.tpl", '(printf "[worker, %s]" .component)', '"[worker, summarizer]"'
    ),
    Mutant(
        "the segmenter is no static member",
        "_helpers.tpl",
        '{{- if eq .component "segmenter" -}}',
        '{{- if eq .component "Segmenter" -}}',
    ),
    Mutant(
        "another namespace", "_helpers.tpl", "namespace: {{ .root.Release.Namespace | quote }}", "namespace: default"
    ),
    Mutant(
        "common labels are lost",
        "_helpers.tpl",
        "(.labels | default dict) .root.Values.commonLabels",
        "(.labels | default dict)",
    ),
    Mutant(
        "PrometheusRule is not selected", "monitoring.yaml", '"labels" .Values.prometheusRule.labels', '"labels" dict'
    ),
    Mutant("sidecars are lost", "_pod.tpl", "{{- with $values.sidecars }}", "{{- with list }}"),
    # settings and secrets of one role
    Mutant(
        "a role's settings are lost, as the segmenter's batch size",
        "_helpers.tpl",
        "mergeOverwrite (deepCopy .root.Values.settings) (deepCopy $own)",
        "deepCopy .root.Values.settings",
    ),
    Mutant(
        "settings of all roles are lost",
        "_helpers.tpl",
        "mergeOverwrite (deepCopy .root.Values.settings) (deepCopy $own)",
        'mergeOverwrite (dict "drain_seconds" .root.Values.settings.drain_seconds) (deepCopy $own)',
    ),
    Mutant(
        "every role has the segmenter's batch size",
        "_helpers.tpl",
        '$own := dig .component "settings" dict',
        '$own := dig (ternary .component "segmenter" (eq .component "server")) "settings" dict',
    ),
    Mutant(
        "the batch size is not in the ConfigMap",
        "_helpers.tpl",
        "{{- range $key, $inner := $value }}",
        '{{- range $key, $inner := omit $value "max_batch" }}',
    ),
    Mutant(
        "the server has no key of the reranker",
        "_helpers.tpl",
        "\nllm webhooks\n",
        "\nllm reranker webhooks\n",
    ),
    Mutant(
        "the summarizer is given the reranker's key",
        "_helpers.tpl",
        'reranker serve webhooks\n{{- else if eq .component "archiver"',
        'serve webhooks\n{{- else if eq .component "archiver"',
    ),
    Mutant(
        "the segmenter is given the reranker's key",
        "_helpers.tpl",
        "mongo qdrant llm embedder reranker serve webhooks\n{{- end -}}",
        "mongo qdrant llm embedder serve webhooks\n{{- end -}}",
    ),
    Mutant(
        "a server that ranks with the LLM has no key of it",
        "_helpers.tpl",
        '"llm" }}llm {{ end }}webhooks',
        '"llm" }}{{ end }}llm webhooks',
        "secured",
    ),
    # the wait for topics
    Mutant("no wait", "_pod.tpl", "{{- if $waits }}", "{{- if false }}"),
    Mutant("a wait that nobody wanted", "_pod.tpl", "and $root.Values.topics.wait.enabled", "and true", "small"),
    Mutant("the server waits", "_pod.tpl", '(ne .component "server") }}', '(ne .component "nobody") }}'),
    Mutant("the wait has its own bound", "_pod.tpl", "{{ $root.Values.topics.wait.timeoutSeconds | quote }}", '"9"'),
    Mutant("the wait is another command", "_pod.tpl", "[topics, wait,", "[topics, create,"),
    Mutant("the wait has no password", "_pod.tpl", '  env: {{- include "afterword.env" . | nindent 4 }}\n', ""),
    Mutant(
        "the wait asks another Kafka",
        "_pod.tpl",
        '{name: {{ include "afterword.fullname" $root }}-{{ .component }}}',
        '{name: {{ include "afterword.fullname" $root }}-server}',
    ),
    Mutant(
        "the wait is not restricted",
        "_pod.tpl",
        "  securityContext: {{- toYaml $root.Values.securityContext | nindent 4 }}\n",
        "",
    ),
    Mutant(
        "the wait has no resources",
        "_pod.tpl",
        "  resources: {{- toYaml (index $root.Values .component).resources | nindent 4 }}\n",
        "",
    ),
    Mutant(
        "the wait has no certificates",
        "_pod.tpl",
        '    - {name: tmp, mountPath: /tmp}\n    {{- include "afterword.filesMount" . | nindent 4 }}\n',
        "    - {name: tmp, mountPath: /tmp}\n",
    ),
    # order
    Mutant(
        "topics are made after the workers", "topics-job.yaml", "pre-install,pre-upgrade", "post-install,post-upgrade"
    ),
    Mutant(
        "the Job needs a user that comes later",
        "topics-job.yaml",
        "$isHook := not .Values.strimzi.user.enabled",
        "$isHook := true",
        "strimzi-job",
    ),
    Mutant(
        "the deadline deletes the log",
        "topics-job.yaml",
        "spec:\n  backoffLimit",
        "spec:\n  activeDeadlineSeconds: 240\n  backoffLimit",
    ),
    Mutant(
        "helm test deletes its log",
        "tests/smoke.yaml",
        '"before-hook-creation"',
        '"before-hook-creation,hook-succeeded"',
    ),
    Mutant("topics go with the release", "strimzi.yaml", '"keep"', '"delete"', "strimzi"),
    Mutant(
        "KafkaTopic of no cluster",
        "strimzi.yaml",
        '"strimzi.io/cluster" .Values.strimzi.cluster',
        '"strimzi.io/cluster" .Release.Name',
        "strimzi",
    ),
    Mutant("KafkaUser without its group", "strimzi.yaml", '(printf "%s_id" $role)', '"segmenter_id"', "strimzi"),
)

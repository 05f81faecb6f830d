"""Kubernetes: a LeaderWorkerSet, its configuration, a Service, and on NVL72 racks a ComputeDomain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from k3ctl.planning.render.base import (
    Site,
    config_files,
    config_name,
    dump_all,
    environment,
    header,
    node_count,
    reachable,
    ready_timeout_s,
)
from k3ctl.profiles.resolve import ResolvedConfig

SHM = "32Gi"
PERIOD_S = 10
MOUNT = "/etc/k3ctl"


def manifests(resolved: ResolvedConfig, site: Site) -> Mapping[str, str]:
    """One file of manifests for ``kubectl apply``."""
    open_ = reachable(resolved)
    documents: list[Any] = [_config_map(open_, site)]
    if _imex(resolved):
        documents.append(_compute_domain(resolved))
    documents += [_leader_worker_set(open_, site), _service(open_)]
    return {
        f"{resolved.profile.name}-kubernetes.yaml": header(resolved)
        + _how(resolved, site)
        + dump_all(documents)
    }


def _key(resolved: ResolvedConfig, name: str) -> dict[str, str]:
    """Where a pod finds a key: a Secret that is not part of these files; without it no container starts."""
    return {"name": f"{resolved.profile.name}-keys", "key": name}


def _how(resolved: ResolvedConfig, site: Site) -> str:
    secret = f"{resolved.profile.name}-keys"
    return (
        f"# listens on all addresses, so it needs keys: put {', '.join(site.keys)} "
        "as NAME=value lines into a file, then\n"
        f"# kubectl create secret generic {secret} --from-env-file=FILE\n"
    )


def _imex(resolved: ResolvedConfig) -> bool:
    """Several trays of one NVLink domain: their processes share memory through an IMEX channel."""
    return node_count(resolved) > 1 and any(token.startswith("GB") for token in resolved.profile.requires.gpu)


def _labels(resolved: ResolvedConfig) -> dict[str, str]:
    return {"app.kubernetes.io/name": resolved.profile.name, "app.kubernetes.io/component": "kimi-k3"}


def _config_map(resolved: ResolvedConfig, site: Site) -> dict[str, Any]:
    files = config_files(resolved, Site(directory=MOUNT, image=site.image))
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": resolved.profile.name, "labels": _labels(resolved)},
        "data": {config_name(resolved): files[config_name(resolved)]},
    }


def _compute_domain(resolved: ResolvedConfig) -> dict[str, Any]:
    return {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomain",
        "metadata": {"name": resolved.profile.name, "labels": _labels(resolved)},
        "spec": {
            "numNodes": node_count(resolved),
            "channel": {"resourceClaimTemplate": {"name": f"{resolved.profile.name}-imex"}},
        },
    }


def _leader_worker_set(resolved: ResolvedConfig, site: Site) -> dict[str, Any]:
    count = node_count(resolved)
    template: dict[str, Any] = {"size": count, "restartPolicy": "RecreateGroupOnPodRestart"}
    if count > 1:
        template["leaderTemplate"] = _pod(resolved, site, leader=True)
        template["workerTemplate"] = _pod(resolved, site, leader=False)
    else:
        template["workerTemplate"] = _pod(resolved, site, leader=True)
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": resolved.profile.name, "labels": _labels(resolved)},
        "spec": {
            "replicas": 1,
            # the nodes wait for each other, so all of them must exist before one is ready
            "startupPolicy": "LeaderCreated",
            "leaderWorkerTemplate": template,
        },
    }


def _pod(resolved: ResolvedConfig, site: Site, *, leader: bool) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "terminationGracePeriodSeconds": 120,
        "containers": [_container(resolved, site, leader=leader)],
        "volumes": [
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": SHM}},
            {"name": "config", "configMap": {"name": resolved.profile.name}},
        ],
    }
    if _imex(resolved):
        spec["resourceClaims"] = [
            {"name": "imex", "resourceClaimTemplateName": f"{resolved.profile.name}-imex"}
        ]
        spec["affinity"] = {"podAffinity": _one_domain(resolved)}
    labels = _labels(resolved) | {"k3ctl.dev/role": "leader" if leader else "worker"}
    return {"metadata": {"labels": labels}, "spec": spec}


def _one_domain(resolved: ResolvedConfig) -> dict[str, Any]:
    """All pods of the group on trays of one NVLink domain, by the label of NVIDIA's feature discovery."""
    term = {"labelSelector": {"matchLabels": _labels(resolved)}, "topologyKey": "nvidia.com/gpu.clique"}
    return {"requiredDuringSchedulingIgnoredDuringExecution": [term]}


def _container(resolved: ResolvedConfig, site: Site, *, leader: bool) -> dict[str, Any]:
    serve = f"exec vllm serve --config {MOUNT}/{config_name(resolved)}"
    if node_count(resolved) > 1:
        serve += ' --node-rank "$LWS_WORKER_INDEX" --master-addr "$LWS_LEADER_ADDRESS"'
        serve += f" --master-port {site.master_port}" + ("" if leader else " --headless")
    container: dict[str, Any] = {
        "name": "vllm",
        "image": site.image,
        "command": ["sh", "-c", serve],
        "env": [
            *({"name": key, "value": value} for key, value in environment(resolved).items()),
            *({"name": key, "valueFrom": {"secretKeyRef": _key(resolved, key)}} for key in site.keys),
        ],
        "resources": _resources(resolved),
        # NCCL registers memory
        "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}, {"name": "config", "mountPath": MOUNT}],
    }
    return container | (_probes(resolved) if leader else {})


def _resources(resolved: ResolvedConfig) -> dict[str, Any]:
    resources: dict[str, Any] = {}
    if resolved.profile.requires.gpus:
        resources["limits"] = {"nvidia.com/gpu": str(resolved.profile.requires.gpus_per_node)}
    if _imex(resolved):
        resources["claims"] = [{"name": "imex"}]
    return resources


def _probes(resolved: ResolvedConfig) -> dict[str, Any]:
    """The start-up probe waits as long as the load may take; only then do the others begin."""
    check = {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": PERIOD_S, "timeoutSeconds": 5}
    return {
        "ports": [{"name": "http", "containerPort": int(resolved.args["port"])}],
        "startupProbe": check | {"failureThreshold": -(-ready_timeout_s(resolved) // PERIOD_S)},
        "readinessProbe": check | {"failureThreshold": 3},
        "livenessProbe": check | {"failureThreshold": 12},
    }


def _service(resolved: ResolvedConfig) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": f"{resolved.profile.name}-api", "labels": _labels(resolved)},
        "spec": {
            "selector": _labels(resolved) | {"k3ctl.dev/role": "leader"},
            "ports": [{"name": "http", "port": 80, "targetPort": "http"}],
        },
    }

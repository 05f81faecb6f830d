"""A systemd unit per host, with vLLM's configuration and environment files."""

from __future__ import annotations

from collections.abc import Mapping

from k3ctl.planning.render.base import (
    Site,
    config_files,
    config_name,
    env_name,
    header,
    node_count,
    ready_timeout_s,
)
from k3ctl.profiles.resolve import ResolvedConfig


def units(resolved: ResolvedConfig, site: Site) -> Mapping[str, str]:
    """The unit, the shared files and, for several nodes, one small file that says which node this is.

    A unit counts as started when the process runs; the port answers minutes later, after the load.
    """
    name, several = resolved.profile.name, node_count(resolved) > 1
    serve = f"/usr/bin/env vllm serve --config {site.directory}/{config_name(resolved)}"
    node_file = f"EnvironmentFile={site.directory}/{name}-node.env\n" if several else ""
    if site.keys:
        node_file += (
            f"# mode 0600, with {', '.join(site.keys)}\nEnvironmentFile={site.directory}/{name}.keys\n"
        )
    if several:
        serve += " --node-rank ${NODE_RANK} --master-addr ${MASTER_ADDR}"
        serve += f" --master-port {site.master_port} $HEADLESS"
    unit = (
        f"{header(resolved)}"
        "[Unit]\n"
        f"Description=Kimi K3 on vLLM ({name})\n"
        "Wants=network-online.target\n"
        "After=network-online.target nvidia-persistenced.service\n"
        "After=nvidia-fabricmanager.service nvidia-imex.service\n"
        "\n[Service]\n"
        "Type=exec\n"
        f"EnvironmentFile={site.directory}/{env_name(resolved)}\n{node_file}"
        f"ExecStart={serve}\n"
        "# the API server stops its workers itself when it gets the signal\n"
        "KillMode=mixed\n"
        "KillSignal=SIGTERM\n"
        "TimeoutStopSec=120\n"
        "Restart=on-failure\n"
        "RestartSec=30\n"
        "LimitMEMLOCK=infinity\n"
        "LimitNOFILE=1048576\n"
        "\n[Install]\n"
        "WantedBy=multi-user.target\n"
    )
    files = {f"{name}.service": unit, **config_files(resolved, site)}
    if several:
        files[f"{name}-node.env.example"] = (
            f"# copy to {site.directory}/{name}-node.env on every host; HEADLESS is empty on node 0 only\n"
            "NODE_RANK=1\nMASTER_ADDR=192.0.2.10\nHEADLESS=--headless\n"
            f"# the port answers on node 0 after the load, up to {ready_timeout_s(resolved)} s\n"
        )
    return files

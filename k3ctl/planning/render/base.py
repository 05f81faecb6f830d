"""What every rendering shares: where things lie, the configuration file and the environment file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from k3ctl import __version__
from k3ctl.errors import UsageError
from k3ctl.profiles.resolve import ResolvedConfig
from k3ctl.profiles.vllm_args import config_file

READY_TIMEOUT_S = 3600
"""Time that a start may take where the configuration does not say."""


@dataclass(frozen=True)
class Site:
    """Choices that belong to a cluster, not to a profile."""

    directory: str = "/etc/k3ctl"
    """Where the configuration and environment files lie on every host."""
    image: str = "vllm-k3ctl:0.33.0"
    """Container image with vLLM 0.33.0 (CUDA 13) and k3ctl installed."""
    master_port: int = 29501
    keys: tuple[str, ...] = ()
    """Variables with keys that must be set where the files are used; no file holds one."""


def header(resolved: ResolvedConfig, mark: str = "#") -> str:
    """The first lines of every file: what it is from."""
    profile = resolved.profile
    made = f"Rendered by k3ctl {__version__}; status: {profile.status}"
    return f"{mark} {profile.name}: {profile.summary}\n{mark} {made}\n"


def config_name(resolved: ResolvedConfig) -> str:
    """File name of vLLM's configuration."""
    return f"{resolved.profile.name}.yaml"


def env_name(resolved: ResolvedConfig) -> str:
    """File name of the environment."""
    return f"{resolved.profile.name}.env"


def config_files(resolved: ResolvedConfig, site: Site) -> Mapping[str, str]:
    """``vllm serve --config`` YAML and the environment file."""
    name, env = config_name(resolved), env_name(resolved)
    use = f"# keys, from the environment: {', '.join(site.keys)}\n" if site.keys else ""
    use += f"# set -a; . {site.directory}/{env}; set +a; vllm serve --config {site.directory}/{name}\n"
    return {
        name: header(resolved) + use + dump(config_file(resolved)),
        env: header(resolved) + "".join(f"{key}={value}\n" for key, value in environment(resolved).items()),
    }


def environment(resolved: ResolvedConfig) -> Mapping[str, str]:
    """The environment, checked to need no quoting in any of the formats that read it."""
    for key, value in resolved.env.items():
        if not re.fullmatch(r"[\w.,:/@%+|-]*", value):
            raise UsageError(f"the value of {key} needs quoting, which not every format can do: {value!r}")
    return resolved.env


def dump(data: Any) -> str:
    """YAML in the given order, without aliases, long texts as blocks."""
    import yaml

    class Plain(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the same for every value
            return True

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
        style = "|" if "\n" in value else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Plain.add_representer(str, text)
    return str(yaml.dump(data, Dumper=Plain, sort_keys=False, width=110, allow_unicode=True))


def dump_all(documents: list[Any]) -> str:
    """Several YAML documents in one file."""
    return "---\n".join(dump(document) for document in documents)


def reachable(resolved: ResolvedConfig) -> ResolvedConfig:
    """The same configuration, listening on every address: in a container loopback reaches nobody."""
    return replace(resolved, args={**resolved.args, "host": "0.0.0.0"})


def ready_timeout_s(resolved: ResolvedConfig) -> int:
    """How long the start may take: the engine's own limit and time for the processes around it."""
    return int(resolved.env.get("VLLM_ENGINE_READY_TIMEOUT_S", READY_TIMEOUT_S)) + 300


def node_count(resolved: ResolvedConfig) -> int:
    """Hosts that the deployment takes."""
    return resolved.profile.requires.nodes

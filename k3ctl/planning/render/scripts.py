"""Shell scripts: one command line, one script per node, Ray, Slurm."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace

from k3ctl.planning.render.base import (
    Site,
    config_files,
    config_name,
    env_name,
    environment,
    header,
    node_count,
)
from k3ctl.planning.render.safe import demands
from k3ctl.profiles.resolve import ResolvedConfig
from k3ctl.profiles.vllm_args import argv

SHELL = "#!/usr/bin/env bash\n"
STRICT = "set -euo pipefail\n"


def command(resolved: ResolvedConfig, site: Site) -> Mapping[str, str]:
    """A script with the environment and one ``vllm serve`` line; one per node where there are several."""
    if node_count(resolved) > 1:
        return nodes(resolved, site)
    lines = [SHELL + header(resolved) + STRICT, *_exports(resolved, site)]
    return {f"{resolved.profile.name}.sh": "".join([*lines, f"exec vllm serve {_wrapped(argv(resolved))}\n"])}


def nodes(resolved: ResolvedConfig, site: Site) -> Mapping[str, str]:
    """One script per node for vLLM's own multi-node start; node 0 has the API server."""
    count = node_count(resolved)
    files = {}
    for rank in range(count):
        lines = [SHELL + header(resolved), f"# node {rank} of {count}\n", STRICT, *_exports(resolved, site)]
        lines.append(f"exec vllm serve {_wrapped(argv(resolved))}")
        if count > 1:
            lines.append(f" \\\n  --node-rank {rank} \\\n  --master-port {site.master_port}")
            lines.append(' \\\n  --master-addr "${MASTER_ADDR:?address of node 0}"')
        lines.append(" \\\n  --headless\n" if rank else "\n")
        files[f"{resolved.profile.name}-node{rank}.sh"] = "".join(lines)
    return files


def ray(resolved: ResolvedConfig, site: Site) -> Mapping[str, str]:
    """Two scripts: the head starts Ray, waits for all GPUs and serves; the workers join."""
    args = {key: value for key, value in resolved.args.items() if key != "nnodes"}
    placed = replace(resolved, args={**args, "distributed_executor_backend": "ray"})
    requires, name = resolved.profile.requires, resolved.profile.name
    count = 'import ray; ray.init("auto", log_to_driver=False); print(int(ray.cluster_resources()["GPU"]))'
    wait = (
        f"until [ \"$(python3 -c '{count}' 2>/dev/null || echo 0)\" -ge {requires.gpus} ]; do\n"
        f"  echo 'waiting for {requires.gpus} GPUs in the Ray cluster' >&2\n  sleep 5\ndone\n"
    )
    head = [SHELL + header(resolved), "# head node\n", STRICT, *_exports(resolved, site)]
    head += ["ray start --head --port 6379\n", wait, f"exec vllm serve {_wrapped(argv(placed))}\n"]
    worker = [SHELL + header(resolved), "# every other node\n", STRICT, *_exports(resolved, site)]
    worker += ['exec ray start --block --address "${HEAD_ADDR:?address of the head node}:6379"\n']
    files = {f"{name}-ray-head.sh": "".join(head)}
    return files | ({f"{name}-ray-worker.sh": "".join(worker)} if requires.nodes > 1 else {})


def slurm(resolved: ResolvedConfig, site: Site) -> Mapping[str, str]:
    """An ``sbatch`` script with vLLM's configuration and environment files beside it."""
    requires, name = resolved.profile.requires, resolved.profile.name
    lines = [
        SHELL,
        header(resolved),
        f"#SBATCH --job-name={name}\n#SBATCH --nodes={requires.nodes}\n#SBATCH --ntasks-per-node=1\n",
    ]
    if requires.gpus:
        lines.append(f"#SBATCH --gpus-per-node={requires.gpus_per_node}\n#SBATCH --exclusive\n")
    if requires.nvlink_domain and requires.nodes > 1:
        lines.append("# all nodes in one NVLink domain: the block topology plugin, one block per rack\n")
        lines.append(f"#SBATCH --segment={requires.nodes}\n")
    lines += [
        "#SBATCH --output=%x-%j.log\n",
        STRICT,
        f"set -a; . {site.directory}/{env_name(resolved)}; set +a\n",
        demands(site.keys),
    ]
    serve = f"vllm serve --config {site.directory}/{config_name(resolved)}"
    if requires.nodes == 1:
        lines.append(f"exec srun --kill-on-bad-exit=1 {serve}\n")
    else:
        lines.append(
            'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\nexport MASTER_ADDR\n'
        )
        lines.append(
            "exec srun --kill-on-bad-exit=1 bash -c '\n"
            '  headless=(); [ "$SLURM_NODEID" -eq 0 ] || headless=(--headless)\n'
            f'  exec {serve} --node-rank "$SLURM_NODEID" --master-addr "$MASTER_ADDR" '
            f'--master-port {site.master_port} "${{headless[@]}}"\n\'\n'
        )
    return {f"{name}.sbatch": "".join(lines), **config_files(resolved, site)}


def _exports(resolved: ResolvedConfig, site: Site) -> list[str]:
    own = [f"export {key}={shlex.quote(value)}\n" for key, value in environment(resolved).items()]
    return [*own, demands(site.keys)]


def _wrapped(words: list[str]) -> str:
    """The words, quoted, one option per line."""
    lines = [shlex.quote(words[0])]
    for word in words[1:]:
        if word.startswith("--"):
            lines.append(shlex.quote(word))
        else:
            lines[-1] += f" {shlex.quote(word)}"
    return " \\\n  ".join(lines)

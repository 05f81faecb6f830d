"""Kimi K3 once more, for tests only: plain NumPy in FP64, from the published formulas.

It shares nothing with what it checks: no import of ``runtime``, no torch, no state, no paging, no chunks, no absorbed
projections. Inputs are a ``config.json`` and the checkpoint's tensors by name. It is written to be read against the
formulas, one function a formula, not to be fast.

Sources: the Kimi Linear report (KDA), the DeepSeek-V2 report (MLA), the OCP Microscaling formats 1.0 (MXFP4), and, for
what is K3's own (attention residuals, bounded gate, LatentMoE, SiTU), vLLM 0.33.0's ``models/kimi_k3``, read only.
"""

from tests.model.oracle.formulas import log_softmax
from tests.model.oracle.model import Oracle
from tests.model.oracle.mxfp4 import decode

__all__ = ["Oracle", "decode", "log_softmax"]

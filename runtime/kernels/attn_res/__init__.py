"""Block Attention Residuals: K3's replacement of the residual stream."""

from runtime.kernels.attn_res.reference import AttnResOutput, attn_res

__all__ = ["AttnResOutput", "attn_res"]

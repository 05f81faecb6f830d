"""Secrets that the tests plant and then look for."""

from __future__ import annotations

SECRETS = (
    "hf_PlantedTokenPlantedToken",
    "planted-api-key-value",
    "planted password 123",
    "Bearer-planted-0123456789",
    "my medical history",
)
ENVIRONMENT = {
    "HF_TOKEN": "hf_PlantedTokenPlantedToken",
    "SITE_PASSWORD": "planted password 123",
    "VLLM_LOGGING_LEVEL": "INFO",
    "VLLM_API_KEY": "planted-api-key-value",
    "PATH": "/usr/bin",
}

"""pdrouter's KV plane as a connector of vLLM.

vllm serve MODEL --kv-transfer-config '{"kv_connector": "PdrouterConnector", "kv_connector_module_path": "pdrouter_vllm",
"kv_role": "kv_producer", "kv_connector_extra_config": {...}}'

connector.py is the only module that imports vLLM, and is imported when vLLM asks for the class; all others are plain Python over
the C library (library.py). docs/vllm.md has the states and the settings.
"""

__all__ = ["PdrouterConnector"]


def __getattr__(name):
    if name == "PdrouterConnector":
        from .connector import PdrouterConnector

        return PdrouterConnector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

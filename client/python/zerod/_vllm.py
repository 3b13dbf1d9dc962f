"""What vLLM loads at its start: the entry point of the group vllm.general_plugins."""

import contextlib


def register() -> None:
    """Makes the backend "zerod" known; its module is imported when an engine names it.  May be called again."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    with contextlib.suppress(ValueError):  # it is known already
        WeightTransferEngineFactory.register_engine("zerod", "zerod.torch.vllm", "WeightTransferEngine")

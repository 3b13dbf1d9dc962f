"""vLLM's weights from a job: --weight-transfer-config '{"backend": "zerod"}'.

Rules
- An update first holds a whole version, and then changes the model.  What fails before that leaves the model as it is.
- The version that the model has stays held until another one is loaded.  If loading fails, that version is loaded again.
- Workers of one engine must have one version, so several workers are told its number.
- Loaders of models get copies: a write to the service's memory would end the process.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from vllm.distributed.weight_transfer import base
from vllm.model_executor.model_loader.mtp_validation import disable_mtp_completeness_check
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from ..follower import Follower, Weights
from .follower import follow


@dataclass
class InitInfo(base.WeightTransferInitInfo):
    """As :func:`zerod.torch.follow` takes them.  timeout: seconds, of each wait for a version.

    dtype: "bfloat16", say, in which the node has the parameters for the engine; None: the job's.
    """

    job: str | None = None
    socket: str | None = None
    timeout: float | None = None
    dtype: str | None = None


@dataclass
class UpdateInfo(base.WeightTransferUpdateInfo):
    """The version to load, or the newest above `newer_than`.  Neither: the newest at the update's start."""

    version: int | None = None
    newer_than: int | None = None


class WeightTransferEngine(base.WeightTransferEngine[InitInfo, UpdateInfo]):
    """Loads versions of a job.  The job has all parameters of the model, by the names that its load_weights() takes."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    supports_draft_weight_update = False  # a draft model has other tensors

    def __init__(self, *arguments: Any, **named: Any):
        super().__init__(*arguments, **named)
        self._job: Follower | None = None
        self._pinned: Weights | None = None  # for the update under way
        self._loaded: Weights | None = None  # the model has it
        self._old: list[Weights] = []

    @property
    def version(self) -> int | None:
        """The version that the model has; None: none of the job."""
        return self._loaded.version if self._loaded else None

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Names the job, which need not be there yet.  Raises ValueError, TypeError."""
        dtype = getattr(torch, init_info.dtype, None) if init_info.dtype else None
        if init_info.dtype and not isinstance(dtype, torch.dtype):
            raise ValueError(f"dtype: torch has no {init_info.dtype!r}")
        job = follow(init_info.job, init_info.socket, init_info.timeout, dtype=dtype)
        self.shutdown()
        self._job = job

    def start_weight_update(self) -> None:
        """Holds the newest version, where a single worker may choose.  Raises as Follower.wait()."""
        self._unpin()
        if self._alone():
            self._pinned = self._follower().wait()

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Loads a version.  Raises ValueError for a wrong key, and as receive_weights()."""
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":  # vLLM's own method raises without an accelerator
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Holds the version that is wanted, and loads it.

        If loading fails, the error is raised when the model has its last version again.  Before the first update there
        is none, and RuntimeError says so.  Raises as Follower.wait(), and ValueError if several workers might choose.
        """
        wanted = self._choose(update_info)
        self._pinned = None
        try:
            self._load(wanted)
        except BaseException as why:
            if wanted is not self._loaded:
                wanted.release()
            self._load_again(why)
            raise
        if wanted is not self._loaded:
            self._old += [self._loaded] if self._loaded else []
            self._loaded = wanted

    def finish_weight_update(self) -> None:
        """Releases the version that was loaded before."""
        self._unpin()
        while self._old:
            self._old.pop().release()

    def shutdown(self) -> None:
        """Leaves the job.  The model keeps its values."""
        self.finish_weight_update()
        if self._loaded:
            self._loaded.release()
        if self._job:
            self._job.close()
        self._job = self._loaded = None

    def _alone(self) -> bool:
        return self.parallel_config.world_size_across_dp == 1

    def _follower(self) -> Follower:
        if self._job is None:
            raise RuntimeError("no job is named yet: call init_weight_transfer_engine first")
        return self._job

    def _unpin(self) -> None:
        if self._pinned:
            self._pinned.release()
        self._pinned = None

    def _choose(self, info: UpdateInfo) -> Weights:
        if info.version is None and not self._alone():
            raise ValueError("the engine has several workers, which might take different versions: name one in update_info, "
                             '{"version": N}, and hold it meanwhile')
        pinned = self._pinned
        if pinned and (info.version in (None, pinned.version) if info.newer_than is None
                       else info.version is None and pinned.version > info.newer_than):
            return pinned
        self._unpin()
        return self._follower().wait(newer_than=info.newer_than, version=info.version)

    def _load(self, weights: Weights) -> None:
        initialize_layerwise_reload(self.model)
        try:
            with disable_mtp_completeness_check():
                self.model.load_weights(self._copies(weights))
        finally:
            finalize_layerwise_reload(self.model, self.model_config)

    def _copies(self, weights: Weights) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in weights:
            yield name, tensor.to(self.device, copy=True)

    def _load_again(self, why: BaseException) -> None:
        if self._loaded is None:
            raise RuntimeError("the first update failed, so the model has parts of a version: update again, or restart the "
                               "engine") from why
        self._load(self._loaded)

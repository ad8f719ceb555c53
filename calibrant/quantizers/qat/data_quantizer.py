"""The quantizer of a layer's input in training: ULQ between clip ends that IFMR finds and training moves (docs/algorithms.md 6)."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from calibrant.errors import DataError
from calibrant.quantizers.affine import Fit
from calibrant.quantizers.ifmr import fit_ifmr
from calibrant.quantizers.options import IfmrOptions, UlqOptions
from calibrant.quantizers.qat.histogram_state import histogram_from_state, histogram_state
from calibrant.quantizers.qat.settings import DataSettings
from calibrant.quantizers.qat.ulq import fake_quantize_ulq, ulq_scale
from calibrant.quantizers.ulq import fit_ulq
from calibrant.stats.histogram import LogLinearHistogram


class _Served:
    """The last input and its result, so that layers which read one tensor quantize it once; copies and pickles are empty."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.value: Tensor | None = None
        self.result: Tensor | None = None
        self.key: tuple[int, int, bool] = (0, 0, False)
        self.times = 0

    def __deepcopy__(self, memo: Any) -> "_Served":
        return _Served()

    def __reduce__(self) -> Any:
        return _Served, ()


class DataQuantizer(nn.Module):
    """Rounds an activation between two learned clip ends.

    Until `batch_num` batches are seen the ends are those of the current batch, and nothing is learned; then IFMR, without offset as
    in AMCT, gives the first ends from a histogram of all of them. Batches count in training and in evaluation. A lower end of
    `fixed_min` stays 0. Under ``torch.distributed`` the ends are averaged over the processes, while training.

    Attributes:
        settings: bits, offset, configured ends.
        batch_num: batches to see before IFMR.
        batches: batches seen.
        users: how many layers read the tensor that it quantizes.
        layer: the first of them, for messages.
        clip_max: the upper end, a scalar parameter.
        clip_min: the lower end, a scalar parameter.
    """

    clip_max: nn.Parameter
    clip_min: nn.Parameter
    clip_max_pre: Tensor
    clip_min_pre: Tensor

    def __init__(self, settings: DataSettings, batch_num: int = 1, layer: str = "") -> None:
        super().__init__()
        self.settings = settings
        self.batch_num = batch_num
        self.batches = 0
        self.users = 1
        self.layer = layer
        high, low = settings.clip_max, 0.0 if settings.fixed_min else settings.clip_min
        self._ready = settings.clip_max is not None
        self.clip_max = nn.Parameter(torch.tensor(1.0 if high is None else high), requires_grad=not settings.frozen)
        learns_min = not settings.frozen and not settings.fixed_min
        self.clip_min = nn.Parameter(torch.tensor(0.0 if low is None else low), requires_grad=learns_min)
        self.register_buffer("clip_max_pre", self.clip_max.detach().clone())
        self.register_buffer("clip_min_pre", self.clip_min.detach().clone())
        self._histogram = None if self._ready else LogLinearHistogram()
        self._served = _Served()

    @property
    def is_ready(self) -> bool:
        """Whether the clip ends have their first values."""
        return self._ready

    def forward(self, values: Tensor) -> Tensor:
        """Return the values at their codes', in their own shape and type."""
        if self.users == 1 or values.is_inference():
            return self._quantize(values)
        served = self._served
        if served.value is not values or served.key != self._key(values) or served.result is None:
            served.value, served.result, served.times = values, self._quantize(values), 0
            served.key = self._key(values)
        result, served.times = served.result, served.times + 1
        if served.times == self.users:
            served.clear()
        return result

    def _key(self, values: Tensor) -> tuple[int, int, bool]:
        """Return what changes when the result would: the tensor in place, the ends, whether gradients are wanted."""
        return values._version, self.clip_max._version + self.clip_min._version, torch.is_grad_enabled()

    def fit(self) -> Fit:
        """Return scale and offset of the learned range.

        Raises:
            RangeError: the ends are not finite or in the wrong order.
        """
        high, low = self._mended()
        return fit_ulq(float(high), float(low), UlqOptions(self.settings.bits, self.settings.asymmetric))

    def scale(self) -> Tensor:
        """Return the step of the learned range, float32 of shape ()."""
        return ulq_scale(
            self.clip_max.detach().float(), self.clip_min.detach().float(), self.settings.bits, self.settings.asymmetric
        )

    def _quantize(self, values: Tensor) -> Tensor:
        if values.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            message = f"layer '{self.layer}': data of {str(values.dtype).removeprefix('torch.')}; float32 or float16 was expected"
            raise DataError(message)
        wide = values.float()
        if not self._ready:
            self._observe(wide.detach())
        bits, asymmetric = self.settings.bits, self.settings.asymmetric
        if not self._ready:
            low, high = wide.detach().amin().clamp(max=0.0), wide.detach().amax().clamp(min=0.0)
            unlearned = 0.0 * (self.clip_max + self.clip_min)  # both take part, or DistributedDataParallel misses them
            return (fake_quantize_ulq(wide, high, low, bits, asymmetric=asymmetric) + unlearned).to(values.dtype)
        self._average()
        self._mend()
        return fake_quantize_ulq(wide, self.clip_max.float(), self.clip_min.float(), bits, asymmetric=asymmetric).to(
            values.dtype
        )

    def _observe(self, values: Tensor) -> None:
        """Count a batch; the last of `batch_num` gives the first clip ends."""
        if self._histogram is None:
            self._histogram = LogLinearHistogram()
        self._histogram.update(np.ascontiguousarray(values.cpu().numpy()))
        self.batches += 1
        if self.batches < self.batch_num:
            return
        try:
            fit = fit_ifmr(self._histogram, IfmrOptions(self.settings.bits, asymmetric=False))
        except DataError as error:
            message = f"layer '{self.layer}': the first clip ends cannot be found: {error}"
            raise DataError(message) from error
        self._begin(float(fit.clip_max), float(fit.clip_min))

    @torch.no_grad()
    def _begin(self, clip_max: float, clip_min: float) -> None:
        self.clip_max.fill_(clip_max)
        self.clip_min.fill_(0.0 if self.settings.fixed_min else clip_min)
        self._average(always=True)
        self.clip_max_pre.copy_(self.clip_max)
        self.clip_min_pre.copy_(self.clip_min)
        self._histogram, self._ready = None, True

    @torch.no_grad()
    def _average(self, *, always: bool = False) -> None:
        """Take the mean of the ends over all processes, as each must hold the same."""
        if not (self.training or always) or not dist.is_available() or not dist.is_initialized():
            return
        ends = torch.stack([self.clip_max.detach(), self.clip_min.detach()])
        dist.all_reduce(ends)
        ends /= dist.get_world_size()
        self.clip_max.copy_(ends[0])
        self.clip_min.copy_(ends[1])

    def _mended(self) -> tuple[Tensor, Tensor]:
        """Return the ends, with a step taken back that turned them round or moved one across zero."""
        high = self.clip_max.detach()
        low = torch.zeros_like(high) if self.settings.fixed_min else self.clip_min.detach()
        crossed = high <= low
        return (
            torch.where(crossed | (high < 0), self.clip_max_pre, high),
            torch.where(crossed | (low > 0), self.clip_min_pre, low),
        )

    @torch.no_grad()
    def _mend(self) -> None:
        """Let the mended ends hold, and remember them."""
        high, low = self._mended()
        for kept, end in (
            (self.clip_max, high),
            (self.clip_max_pre, high),
            (self.clip_min, low),
            (self.clip_min_pre, low),
        ):
            kept.copy_(end)

    def get_extra_state(self) -> dict[str, Any]:
        """Return what a state dict holds besides the ends: how far the first batches are, and their histogram."""
        histogram = None if self._histogram is None else histogram_state(self._histogram)
        return {"ready": self._ready, "batches": self.batches, "histogram": histogram}

    def set_extra_state(self, state: Mapping[str, Any]) -> None:
        """Take back what `get_extra_state` gave."""
        self._ready, self.batches = bool(state["ready"]), int(state["batches"])
        self._histogram = None if state["histogram"] is None else histogram_from_state(state["histogram"])

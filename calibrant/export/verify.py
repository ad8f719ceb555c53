"""Prove the two exported models against each other: layer by layer on equal codes in exact integers, and end to end.

What a layer's outputs may differ by is in `calibrant.export.layer_tally`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from calibrant.errors import DataError, EmptyDataError, ExportError
from calibrant.export.deploy_graph import DeployGraph
from calibrant.export.external_data import load_model
from calibrant.export.fake_graph import FakeLayer, FakePair, FakeReader, FakeRunner
from calibrant.export.files import ExportedFiles
from calibrant.export.integer_layers import Array, IntegerLayer, Quantizer
from calibrant.export.interpreter import Interpreter, LayerRun, run_layer
from calibrant.export.layer_tally import LayerTally
from calibrant.export.lint import Finding, lint_deploy
from calibrant.export.metrics import decibels, power_and_noise
from calibrant.export.pair_tally import PairTally
from calibrant.export.report import LayerCheck, VerifyReport
from calibrant.export.weight_only import is_weight_only
from calibrant.export.weight_only_graph import read_weight_only
from calibrant.export.weight_only_tally import WeightOnlyTally
from calibrant.proto.record import RecordEntry, read_record
from calibrant.quantizers.affine import code_range
from calibrant.quantizers.half_factors import FORCED, dequant_factors
from calibrant.stats.events import Progress, no_progress

Feeds = Mapping[str, Array]


def verify_export(files: ExportedFiles, inputs: Sequence[Feeds], progress: Progress = no_progress) -> VerifyReport:
    """Verify an export from its files.

    Args:
        files: where it stands.
        inputs: feeds of one sample each, input name -> array with batch axis 1.
        progress: told after each feed.

    Returns:
        The report; what is wrong is in it, nothing is raised for it.

    Raises:
        EmptyDataError: no inputs.
        ExportError: a file is missing or unreadable.
        DataError: inputs that do not fit the model.
    """
    if not inputs:
        message = "verify: no samples; at least one is needed"
        raise EmptyDataError(message)
    if missing := files.missing():
        message = f"verify: '{missing[0]}' is missing; export first"
        raise ExportError(message)
    deploy, record = _load(files.deploy), read_record(files.record)
    findings = list(lint_deploy(deploy, record))
    try:
        packed = [entry.key for entry in record if entry.wts_type == "INT4"]
        comparison = _Comparison(Interpreter(deploy, packed), files, {entry.key: entry for entry in record})
        _compare_all(comparison, inputs, progress)
    except ExportError as error:
        findings.append(Finding("error", "models", str(error)))
        return VerifyReport((), nan, len(inputs), tuple(findings))
    findings += comparison.findings
    return VerifyReport(comparison.checks(), comparison.sqnr_db(), len(inputs), tuple(findings))


def _compare_all(comparison: "_Comparison", inputs: Sequence[Feeds], progress: Progress) -> None:
    for number, feeds in enumerate(inputs):
        progress("verify", number, len(inputs))
        try:
            comparison.feed(feeds)
        except DataError as error:
            message = f"verify: sample {number}: {error}"
            raise DataError(message) from error
    progress("verify", len(inputs), len(inputs))


@contextmanager
def _refusals(path: Path) -> Iterator[None]:
    """Say which model does not take a sample, and what to do."""
    try:
        yield
    except DataError as error:
        message = f"the model at '{path}' does not take it: {error}; verify on samples of this model, or give the prefix of theirs"
        raise DataError(message) from error


class _Comparison:
    """Both models, run feed by feed."""

    def __init__(self, interpreter: Interpreter, files: ExportedFiles, record: Mapping[str, RecordEntry]) -> None:
        self._interpreter = interpreter
        self._graph = interpreter.graph
        self._files = files
        fake_quant = _load(files.fake_quant)
        reader = FakeReader(fake_quant)
        self._fakes = {
            layer.name: reader.layer(layer.name, layer.bias_node, half=layer.half) for layer in interpreter.layers
        }
        self._pairs = {
            reader.pair(anti.node, anti.input_index, half=anti.half): anti for anti in self._graph.antiquantizers
        }
        alone = [entry for entry in record.values() if is_weight_only(entry)]
        self._weights = {
            (fake := read_weight_only(fake_quant, entry.key)): WeightOnlyTally(
                read_weight_only(self._graph.model, entry.key), fake, entry
            )
            for entry in alone
        }
        seconds = [fake.second for fake in self._fakes.values() if fake.second is not None]
        self._runner = FakeRunner(
            files.fake_quant,
            [*self._fakes.values(), *seconds, *self._pairs, *self._weights],
            interpreter.crossings if any(layer.half for layer in interpreter.layers) else None,
        )
        self._pair_tallies = {
            fake: PairTally(self._graph.quantizer_of(anti), anti, fake, record.get(anti.key))
            for fake, anti in self._pairs.items()
        }
        self._tallies = {layer.name: LayerTally(layer) for layer in interpreter.layers}
        self._outputs = _Distance()
        for layer in interpreter.layers:
            constants = _constant_faults(self._graph, layer, self._fakes[layer.name], record.get(layer.name))
            self._tallies[layer.name].fail(*constants)
            entry = record.get(layer.name)
            if entry is not None and (fault := reader.balance_fault(self._fakes[layer.name], entry)):
                self._tallies[layer.name].fail(f"in the fake-quant model {fault}")

    def feed(self, feeds: Feeds) -> None:
        """Compare both models on one feed."""
        filled = _fill_batch(feeds, self._graph.model.graph)
        with _refusals(self._files.deploy):
            self._interpreter.check(filled)
        with _refusals(self._files.fake_quant):
            self._runner.start(filled)
        outputs = self._interpreter.run(filled, self._observe)
        for fake, tally in self._pair_tallies.items():
            tally.compare(*self._runner.values(fake))
        for node, weight_tally in self._weights.items():
            weight_tally.compare(*self._runner.values(node)[1:])
        for name, expected in self._runner.outputs.items():
            self._outputs.add(name, outputs[name], expected)

    def checks(self) -> tuple[LayerCheck, ...]:
        """Return the checks so far: of the layers, of inputs of other nodes, of layers whose weight alone is quantized."""
        layers = tuple(self._tallies[layer.name].check() for layer in self._interpreter.layers)
        pairs = tuple(tally.check() for tally in self._pair_tallies.values())
        return (*layers, *pairs, *(tally.check() for tally in self._weights.values()))

    @property
    def findings(self) -> list[Finding]:
        """Return what is wrong with outputs that have no SQNR."""
        return self._outputs.findings

    def sqnr_db(self) -> float:
        """Return the least SQNR of an output so far."""
        return self._outputs.least_db()

    def _observe(self, done: LayerRun) -> None:
        layer, tally = done.layer, self._tallies[done.layer.name]
        source, data, output = self._runner.values(self._fakes[layer.name])
        if not np.array_equal(self._graph.quantizer_of(layer).codes(source), data):
            tally.fail("the fake-quant codes are not clip(rint(x * scale) + offset) - offset")
        bound = self._bound(layer, tally)
        same = np.array_equal(done.data, data) and (bound is layer or _same(bound.weight, layer.weight))
        tally.compare(done if same else run_layer(bound, data), output)

    def _bound(self, layer: IntegerLayer, tally: LayerTally) -> IntegerLayer:
        """Return a product with the second codes of the fake-quant model; any other layer as it is."""
        second, quantizer = self._fakes[layer.name].second, self._graph.second_quantizer_of(layer)
        if second is None or quantizer is None:
            return layer
        source, data, _ = self._runner.values(second)
        if not np.array_equal(quantizer.codes(source), data):
            tally.fail("the fake-quant codes of its second input are not clip(rint(x * scale) + offset) - offset")
        return layer.bound(data)


class _Distance:
    """Signal and noise of each output over all feeds."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, float]] = {}
        self.findings: list[Finding] = []

    def add(self, name: str, got: Any, expected: Any) -> None:
        """Add one feed's output."""
        if np.shape(got) != np.shape(expected):
            message = f"shape {np.shape(expected)} from the fake-quant model, {np.shape(got)} from the deploy model"
            self._fault("error", name, message)
        elif not np.issubdtype(np.asarray(expected).dtype, np.floating):
            if not np.array_equal(got, expected):
                self._fault("warn", name, "an output of whole numbers or texts differs between the two models")
        else:
            self._add_float(name, np.asarray(got, np.float64), np.asarray(expected, np.float64))

    def least_db(self) -> float:
        """Return the least SQNR; infinite where nothing differs."""
        found = [decibels(signal, noise) for signal, noise in self._sums.values()]
        return float(np.min(found)) if found else inf  # np.min keeps a NaN, min does not

    def _add_float(self, name: str, got: Array, expected: Array) -> None:
        signal, noise = self._sums.get(name, (0.0, 0.0))
        more_signal, more_noise = power_and_noise(expected, got)
        self._sums[name] = signal + more_signal, noise + more_noise

    def _fault(self, severity: Any, name: str, message: str) -> None:
        finding = Finding(severity, name, message)
        if finding not in self.findings:
            self.findings.append(finding)


def _constant_faults(graph: DeployGraph, layer: IntegerLayer, fake: FakeLayer, entry: RecordEntry | None) -> list[str]:
    """Compare the constants of a layer in the deploy model, the fake-quant model and the record."""
    quantizer = graph.quantizer_of(layer)
    checks: list[tuple[bool, str]] = [
        (_same(layer.weight, fake.weight), "the weight codes of the two models differ"),
        (_same(layer.bias, fake.bias), "the bias codes of the two models differ"),
        (_same(layer.dequant_scale, fake.dequant_scale), "the dequant scales of the two models differ"),
        (_whole(layer.shift) == _whole(fake.shift), "the shifts of the two models differ"),
        (quantizer.scale == fake.scale, "the data scales of the two models differ"),
        (quantizer.offset == fake.offset, "the data offsets of the two models differ"),
        (code_range(quantizer.bits) == fake.limits, "the code ranges of the two models differ"),
        *_record_checks(quantizer, fake, entry),
        *_second_checks(graph.second_quantizer_of(layer), fake.second, entry),
    ]
    return [fault for holds, fault in checks if not holds]


def _record_checks(quantizer: Quantizer, fake: FakeLayer, entry: RecordEntry | None) -> list[tuple[bool, str]]:
    if entry is None or entry.scale_d is None:
        return [(False, "the record has no entry for it")]
    scale_d = np.float32(entry.scale_d)
    words = dequant_factors(scale_d, entry.scale_w, half=entry.fakequant_precision_mode == FORCED)
    return [
        (fake.scale == np.float32(1) / scale_d, "the fake-quant data scale is not float32(1 / scale_d) of the record"),
        (fake.offset == entry.offset_d, "the fake-quant data offset is not that of the record"),
        (_same(fake.dequant_scale, words), "the fake-quant dequant scales are not scale_d * scale_w of the record"),
        (_whole(fake.shift) == _shifts_of(entry), "the fake-quant shifts are not shift_bit of the record"),
        (f"INT{quantizer.bits}" == (entry.act_type or "INT8"), "the data width is not that of the record"),
        (_within_width(fake.weight, entry), "weight codes are wider than the record says"),
        (_in_cluster(fake.weight, entry), "weight codes are not among the centres (cluster) of the record"),
    ]


def _second_checks(
    quantizer: Quantizer | None, fake: FakePair | None, entry: RecordEntry | None
) -> list[tuple[bool, str]]:
    """Compare the second quantizer of a product in both models and the record, where its step is scale_w."""
    if quantizer is None or fake is None:
        return [((quantizer is None) == (fake is None), "only one of the two models quantizes its second input")]
    step = np.float32(1) / np.asarray(entry.scale_w if entry is not None and entry.scale_w else [np.nan], np.float32)[0]
    plain = (quantizer.offset, fake.offset, quantizer.bits, fake.limits) == (0, 0, 8, code_range(8))
    return [
        (
            quantizer.scale == fake.scale == step,
            "the scales of its second input are not float32(1 / scale_w) of the record",
        ),
        (plain, "its second input must have 8 bits and no offset"),
    ]


def _within_width(codes: Array | None, entry: RecordEntry) -> bool:
    low, high = code_range(int((entry.wts_type or "INT8").removeprefix("INT")))
    return codes is None or (codes.min(initial=0) >= low and codes.max(initial=0) <= high)


def _in_cluster(codes: Array | None, entry: RecordEntry) -> bool:
    return codes is None or not entry.cluster or bool(np.isin(codes, entry.cluster).all())


def _whole(shift: Array | None) -> list[float]:
    return [] if shift is None else np.asarray(shift, np.float64).tolist()


def _shifts_of(entry: RecordEntry) -> list[float]:
    """Return the shifts of a record, one for each scale; 0 throughout means that there are none."""
    shift = [float(one) for one in entry.shift_bit]
    return [] if not any(shift) else shift * len(entry.scale_w) if len(shift) == 1 else shift


def _same(first: Array | None, second: Array | None) -> bool:
    if first is None or second is None:
        return first is second
    return first.dtype == second.dtype and bool(np.array_equal(first, second))


def _fill_batch(feeds: Feeds, graph: onnx.GraphProto) -> dict[str, Array]:
    """Repeat a sample along axes of length 1 where the model's batch is a larger number."""
    shapes = {value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in graph.input}
    return {name: _repeat(np.asarray(array), shapes.get(name, [])) for name, array in feeds.items()}


def _repeat(array: Array, shape: Sequence[int]) -> Array:
    if array.ndim != len(shape):
        return array
    for axis, (have, want) in enumerate(zip(array.shape, shape, strict=True)):
        if have == 1 and want > 1:
            array = np.repeat(array, want, axis=axis)
    return array


def _load(path: Path) -> onnx.ModelProto:
    try:
        return load_model(path)
    except Exception as error:  # protobuf's DecodeError and onnx's own types have no common base
        message = f"verify: '{path}' is no readable ONNX model ({error}); export again"
        raise ExportError(message) from error

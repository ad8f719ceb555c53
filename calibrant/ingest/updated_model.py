"""A copy of a model in which every node has a name of its own, so that a configuration can name it."""

from pathlib import Path

import onnx_ir as ir

from calibrant.errors import ModelError
from calibrant.ingest.passes.names import ORIGINAL_NODES, name_nodes
from calibrant.ingest.source import read_model, reading
from calibrant.whole_files import whole_file


def write_updated_model(model: Path, output: Path) -> int:
    """Write a copy of a model whose nodes are named as `prepare_model` names them; nothing else changes.

    Nameless nodes become ``<OpType>_<position>``; of equal names the first stays and the next become ``<name>_1``, ``<name>_2``.

    Args:
        model: an ONNX file.
        output: the copy; external weights go beside it, to ``<name>.data``.

    Returns:
        How many nodes have another name now.

    Raises:
        ModelError: the file is no ONNX model, the copy would replace it, or the place cannot be written.
    """
    if output.resolve() == model.resolve():
        message = f"{output}: the updated model would replace the model itself; give another path"
        raise ModelError(message)
    with reading(model):
        content = read_model(model)
        changed = _name(content)
        _save(content, output)
    return changed


def _name(model: ir.Model) -> int:
    before = [node.name for graph in model.graphs() for node in graph]
    name_nodes(model)
    nodes = [node for graph in model.graphs() for node in graph]
    for node in nodes:
        node.metadata_props.pop(ORIGINAL_NODES, None)
    return sum(node.name != name for node, name in zip(nodes, before, strict=True))


def _save(model: ir.Model, output: Path) -> None:
    """Write the copy whole or not at all."""
    sources = {
        Path(one.path).resolve() for one in model.graph.initializers.tensors() if isinstance(one, ir.ExternalTensor)
    }
    external = f"{output.name}.data" if sources else None
    if external is not None and output.with_name(external).resolve() in sources:
        message = f"{output}: {external} would replace the weights of the model itself; give another path"
        raise ModelError(message)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(output) as partial:
            ir.save(model, partial, external_data=external)
    except OSError as error:
        message = f"{output}: cannot write: {error.strerror or error}; choose a writable place"
        raise ModelError(message) from error

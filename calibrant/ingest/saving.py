"""The prepared model goes to its file, through onnxruntime's own check and into tables, on a thread beside what runs it in memory."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from calibrant.ingest.model import PreparedModel, prepared_proto, save_prepared
from calibrant.ingest.model_tables import write_model_tables
from calibrant.ingest.session import check_loads, loads
from calibrant.stats.events import Progress
from calibrant.stats.run import MODEL_FOLDER, PREPARED_FILE


def save_checked(prepared: PreparedModel, folder: Path) -> None:
    """Write ``prepared.onnx`` into a folder, and let onnxruntime load it.

    Raises:
        ModelError: onnxruntime refuses the model.
        OSError: it cannot be written.
    """
    save_prepared(prepared, folder)
    message = prepared_proto(prepared)
    if message is None or not loads(message):
        check_loads(folder / PREPARED_FILE)


def _save(prepared: PreparedModel, folder: Path) -> None:
    save_checked(prepared, folder / MODEL_FOLDER)
    write_model_tables(prepared, folder)


@contextmanager
def saved_beside(
    prepared: PreparedModel, folder: Path, progress: Progress, *, alone: bool = False
) -> Iterator[Progress]:
    """Save and check a prepared model while a block runs it, and write the tables that it alone decides.

    Where both fail, the error of the model is the one that is raised, whichever came first. The thread has ended when the block is
    left, by an interrupt too, so that the folder can be removed then. A model whose weights lie in a file is saved before the block,
    which needs the file.

    Args:
        prepared: the model; what the block runs is made of its `prepared_proto`.
        folder: the run's.
        progress: of the block.
        alone: save before the block; whoever plans by what the process holds wants nothing beside.

    Yields:
        what the block calls in place of `progress`: it raises the error of the model, so that a capture ends at its next batch.

    Raises:
        ModelError: onnxruntime refuses the model.
        OSError, RunError: it cannot be written.
    """
    if alone or prepared_proto(prepared) is None:
        _save(prepared, folder)
        yield progress
        return
    with ThreadPoolExecutor(1, thread_name_prefix="save") as pool:
        saving = pool.submit(_save, prepared, folder)
        try:
            yield _stopped_by(saving, progress)
        except Exception:
            saving.result()
            raise
        saving.result()


def _stopped_by(saving: "Future[None]", progress: Progress) -> Progress:
    def report(stage: str, done: int, total: int) -> None:
        if saving.done():
            saving.result()
        progress(stage, done, total)

    return report

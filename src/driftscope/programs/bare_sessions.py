"""A bare session of onnxruntime, for who asks it one question: names, a block size, one run of one node.

Programs that are compared run through :class:`~driftscope.programs.protocol.Program`; this is for the rooms above
that run files of their own making. It loads neither torch nor anything that does: worker processes import it.
"""

from __future__ import annotations

from typing import Any

from driftscope.errors import DependencyMissing


def bare_session(model: str | bytes, threads: int | None = None) -> Any:
    """Return an ``onnxruntime.InferenceSession`` on the CPU, quiet on standard error.

    Parameters
    ----------
    model : str or bytes
        A path, or a serialised model.
    threads : int or None
        Threads inside an operator; None for onnxruntime's choice.

    Raises
    ------
    DependencyMissing
        If onnxruntime is not installed.
    Exception
        What onnxruntime raises when it does not load the model; its errors share no class of their own.
    """
    onnxruntime = _module()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if threads is not None:
        options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def session_words() -> str:
    """Name onnxruntime with its version: ``"onnxruntime 1.31.0"``."""
    return f"onnxruntime {_module().__version__}"


def _module() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise DependencyMissing("running ONNX", "onnxruntime", "onnx") from error
    return onnxruntime

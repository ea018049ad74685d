"""How an onnxruntime session is set up: levels, disabled optimisers, threads, execution providers."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import onnxruntime

from driftscope.errors import ProgramError, RuntimeRefused

if TYPE_CHECKING:
    from driftscope.records.finding import Finding

LEVELS = {
    "disable": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "layout": "ORT_ENABLE_LAYOUT",
    "all": "ORT_ENABLE_ALL",
}

PROVIDERS = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
    "dml": "DmlExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
    "coreml": "CoreMLExecutionProvider",
    "rocm": "ROCMExecutionProvider",
    "migraphx": "MIGraphXExecutionProvider",
    "xnnpack": "XnnpackExecutionProvider",
    "qnn": "QNNExecutionProvider",
}

# onnxruntime starts every thread it is asked for: a hundred thousand of them take all memory and a minute.
MOST_THREADS = 1024

_SPINNING = "session.intra_op.allow_spinning"

# onnxruntime takes any name without a word, so these are what can be checked against: the names its graph
# transformers and rewrite rules give themselves.
OPTIMIZERS = frozenset(
    [
        "AttentionFusion",
        "Avx2WeightS8ToU8Transformer",
        "BiasDropoutFusion",
        "BiasGeluFusion",
        "BiasSkipLayerNormFusion",
        "BiasSoftmaxFusion",
        "CastChainElimination",
        "CastElimination",
        "CastFloat16Transformer",
        "ClipQuantRewrite",
        "CommonSubexpressionElimination",
        "ConcatSliceElimination",
        "ConstantFolding",
        "ConstantFoldingDQ",
        "ConstantSharing",
        "ConvActivationFusion",
        "ConvAddActivationFusion",
        "ConvAddFusion",
        "ConvBNFusion",
        "ConvMulFusion",
        "DQMatMulNBitsFusion",
        "DivMulFusion",
        "DoubleQDQPairsRemover",
        "DynamicQuantizeMatMulFusion",
        "EliminateDropout",
        "EliminateIdentity",
        "EliminateSlice",
        "EmbedLayerNormFusion",
        "EnsureUniqueDQForNodeUnit",
        "ExpandElimination",
        "FastGeluFusion",
        "FreeDimensionOverrideTransformer",
        "FuseFp16InitializerToFp32NodeTransformer",
        "FuseReluClip",
        "GatherSliceToSplitFusion",
        "GatherToSliceFusion",
        "GeluApproximation",
        "GeluFusionL1",
        "GeluFusionL2",
        "GemmActivationFusion",
        "GemmSumFusion",
        "GemmTransposeFusion",
        "GroupQueryAttentionFusion",
        "GroupQueryAttentionPreNormFusion",
        "InsertCastTransformer",
        "LabelEncoderFusion",
        "LayerNormFusionL1",
        "LayerNormFusionL2",
        "MatMulActivationFusion",
        "MatMulAddFusion",
        "MatMulIntegerToFloatFusion",
        "MatMulNBitsFusion",
        "MatMulNBitsMlpFusion",
        "MatMulNBitsQkvFusion",
        "MatMulScaleFusion",
        "MatMul_BatchNormalization_Fusion",
        "MatmulTransposeFusion",
        "MemcpyTransformer",
        "NchwcTransformer",
        "NhwcTransformer",
        "NoopElimination",
        "NotWhereFusion",
        "Pad_Fusion",
        "PreShapeNodeElimination",
        "QDQFinalCleanupTransformer",
        "QDQPropagationTransformer",
        "QDQS8ToU8Transformer",
        "QDQSelectorActionTransformer",
        "QuickGeluFusion",
        "ReluQuantRewrite",
        "RemoveDuplicateCastTransformer",
        "ReshapeFusion",
        "RocmBlasAltImpl",
        "SimplifiedLayerNormFusion",
        "SkipLayerNormFusion",
        "SliceConcatToSpaceToDepthFusion",
        "TransposeOptimizer",
        "UnsqueezeElimination",
        "WeightBiasQuantization",
        "WhereDummyDq",
    ]
)


@dataclass(frozen=True, slots=True)
class SessionSetup:
    """Everything that decides what an onnxruntime session does with a model.

    Parameters
    ----------
    level : str
        Graph optimisation level: ``disable``, ``basic``, ``extended``, ``layout`` or ``all``.
    disabled : tuple of str
        Names of graph optimisers switched off.
    threads : int or None
        Threads inside an operator; None for onnxruntime's own choice.
    provider : str
        ``cpu``, ``cuda`` or a provider's full name.
    save_optimized : str or None
        Where the optimised model is written when the session is created.
    config : tuple of (str, str)
        Further session configuration entries.
    """

    level: str = "all"
    disabled: tuple[str, ...] = ()
    threads: int | None = None
    provider: str = "cpu"
    save_optimized: str | None = None
    config: tuple[tuple[str, str], ...] = field(default=())

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise ProgramError(f"unknown optimisation level {self.level!r}; choose one of {', '.join(LEVELS)}")
        if self.threads is not None and (isinstance(self.threads, bool) or not 1 <= self.threads <= MOST_THREADS):
            raise ProgramError(
                f"threads={self.threads!r}: an operator runs on 1 thread or more, {MOST_THREADS} at most"
            )
        if self.provider_name not in onnxruntime.get_all_providers():
            near = difflib.get_close_matches(self.provider.lower(), PROVIDERS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(PROVIDERS)}"
            raise ProgramError(f"onnxruntime knows no execution provider {self.provider!r}; {hint}")

    @property
    def provider_name(self) -> str:
        """The provider's full name."""
        return PROVIDERS.get(self.provider.lower(), self.provider)

    @property
    def words(self) -> str:
        """This setup in words for people."""
        provider = self.provider_name.removesuffix("ExecutionProvider")
        parts = [f"onnxruntime {onnxruntime.__version__} {provider}", f"optimisation level {self.level}"]
        if self.disabled:
            parts.append(f"without {', '.join(self.disabled)}")
        if self.threads is not None:
            parts.append("1 thread" if self.threads == 1 else f"{self.threads} threads")
        return ", ".join(parts)

    def providers(self) -> list[str]:
        """Return the providers to ask for, the CPU's as the one that takes what is left.

        Raises
        ------
        RuntimeRefused
            If this build of onnxruntime has no such provider. (onnxruntime itself would use the CPU instead.)
        """
        name = self.provider_name
        available = onnxruntime.get_available_providers()
        if name not in available:
            raise RuntimeRefused(
                "onnxruntime",
                "load",
                f"this build has no {name}; it has {', '.join(available)}",
            )
        return [name] if name == PROVIDERS["cpu"] else [name, PROVIDERS["cpu"]]

    def session_options(self, severity: int = 4) -> Any:
        """Return the options for a session; quiet on stderr unless a lower severity is asked for."""
        options = onnxruntime.SessionOptions()
        options.log_severity_level = severity
        options.graph_optimization_level = _level(self.level)
        if self.threads is not None:
            options.intra_op_num_threads = self.threads
        # Threads that wait for work sleep: a session is made and run twice, and awake they take as long as that.
        options.add_session_config_entry(_SPINNING, "0")
        for key, value in self.config:
            options.add_session_config_entry(key, value)
        return options

    def unknown_optimizers(self) -> list[Finding]:
        """Return one note per disabled optimiser that no optimiser we know of is called."""
        return [_unknown(name) for name in self.disabled if name not in OPTIMIZERS]


def _level(name: str) -> Any:
    levels = onnxruntime.GraphOptimizationLevel
    # ORT_ENABLE_LAYOUT came with 1.23; before it, the layout transformations were the only part of "all" beyond
    # "extended".
    return getattr(levels, LEVELS[name], levels.ORT_ENABLE_ALL)


def _unknown(name: str) -> Finding:
    from driftscope.records.finding import Finding, Where  # a worker that runs sessions has no use for it

    near: Sequence[str] = difflib.get_close_matches(name, sorted(OPTIMIZERS), n=2)
    return Finding(
        "O011",
        f"no graph optimiser is known by the name {name!r}: disabling it does nothing, and onnxruntime does not say so",
        fix=f"did you mean {' or '.join(map(repr, near))}?" if near else "check the spelling",
        where=Where(operator=name),
        note=True,
    )

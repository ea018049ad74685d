"""The switches by which arithmetic libraries take a processor for an older one: one machine stands for several."""

from __future__ import annotations

AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell"}  # fmt: skip
BASELINE = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
            "OPENBLAS_CORETYPE": "Nehalem"}  # fmt: skip
SWITCHES = {"as it is": {}, "AVX2": AVX2, "baseline": BASELINE}

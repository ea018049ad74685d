"""Formulas, each written once: what a function computes, in the form that loses fewest digits, and how it rounds.

torch's rules, the operators of ONNX and those of onnxruntime call these; none of them writes a formula of its own.
A formula takes torch tensors of any float dtype (float64 where a graph is lifted, the native one where a constant is
folded); its numbers may be 0-dim tensors that carry a gradient, so a constant can be solved for. Where kernels
cancel, as ``1 + erf`` does, the formula says how large what they cancel is (``*_parts``), because the noise of a
kernel is that of its own steps while the value of a lift is not.

``activations``, ``softmaxes``, ``normalisations``, ``attention``, ``rotary``, ``recurrent``, ``windows``,
``convolutions``, ``quantisation``: one family each. ``terms``: how sums and products round, said briefly.
"""

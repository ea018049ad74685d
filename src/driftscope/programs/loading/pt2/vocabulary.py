"""The names that a ``.pt2`` or TorchScript file may use: shape arithmetic, operators, their options. Data only."""

from __future__ import annotations


def _words(text: str, prefix: str = "") -> frozenset[str]:
    return frozenset(prefix + word for word in text.split())


ASSUMPTIONS = _words(
    """
    integer positive nonnegative negative nonpositive real rational zero nonzero finite extended_real
    extended_positive extended_nonnegative even odd commutative
    """
)
# The names that sympy and torch print shape expressions with, and that are only arithmetic.
FUNCTIONS = _words(
    """
    Add Mul Max Min Mod PythonMod FloorDiv CleanDiv CeilDiv ModularIndexing Where CeilToInt FloorToInt TruncToInt
    RoundToInt TruncToFloat RoundDecimal ToFloat FloatTrueDiv IntTrueDiv Identity
    IsNonOverlappingAndDenseIndicator floor ceiling Abs Piecewise ExprCondPair ITE And Or Not Xor
    Eq Ne Lt Le Gt Ge Equality Unequality StrictLessThan LessThan StrictGreaterThan GreaterThan
    """
)
# Python's own operators and torch's on symbolic numbers, as torch's serializer writes them.
PLAIN_OPERATORS = (
    _words(
        """
        eq ne le ge lt gt neg pos mul add sub floordiv mod pow truediv and_ or_ xor not_ lshift rshift getitem abs
        """,
        "_operator.",
    )
    | _words("trunc floor ceil sqrt", "math.")
    | _words("sym_not sym_int sym_float sym_ite sym_max sym_min sym_sqrt sym_sum", "torch.")
    | _words("sqrt cos sin tan cosh sinh tanh asin acos atan log2", "torch._sym_")
    | _words("sym_sqrt sym_sum", "torch.fx.experimental.sym_node.")
    | _words(
        """
        _add_batch_dim _remove_batch_dim _vmap_increment_nesting _vmap_decrement_nesting lazy_load_decompositions
        """,
        "torch._functorch.predispatch.",
    )
)
# Operators that take graphs and only decide when and how these run. Not among them: what prints, calls compiled
# libraries, script objects or kernels given as text.
STRUCTURAL_OPERATORS = _words(
    """
    cond while_loop while_loop_stack_output scan associative_scan map_impl strict_mode out_dtype invoke_subgraph
    wrap_with_set_grad_enabled wrap_with_autocast wrap_activation_checkpoint tag_activation_checkpoint wrap
    auto_functionalized auto_functionalized_v2 flex_attention hints_wrapper run_const_graph
    autograd_function_apply flat_apply
    """
)
# Names with an underscore in front are torch's inside; these are what exports and decompositions use.
INTERNAL_OPERATORS = _words(
    """
    __and__ __iand__ __ilshift__ __ior__ __irshift__ __ixor__ __lshift__ __or__ __rshift__ __xor__
    _adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d _adaptive_avg_pool3d_backward
    _addmm_activation _aminmax _assert_async _assert_scalar _assert_tensor_metadata _batch_norm_no_update
    _batch_norm_with_update _batch_norm_with_update_functional _cdist_backward _cdist_forward _conj _conj_copy
    _conj_physical _convolution _convolution_mode _ctc_loss _dim_arange _efficientzerotensor _embedding_bag
    _embedding_bag_forward_only _euclidean_dist _fake_quantize_per_tensor_affine_cachemask_tensor_qparams
    _fft_c2c _fft_c2r _fft_r2c _fused_rms_norm _fused_moving_avg_obs_fq_helper_functional
    _functional_assert_async _functional_assert_scalar _functional_sym_constrain_range
    _functional_sym_constrain_range_for_size _grouped_mm _int_mm _is_all_true _is_any_true
    _jagged_to_padded_dense_forward _linalg_check_errors _linalg_det _linalg_eigh _linalg_eigvals
    _linalg_slogdet _linalg_solve_ex _linalg_svd _local_scalar_dense _log_softmax _log_softmax_backward_data
    _logcumsumexp _lu_with_info _make_dep_token _masked_softmax _native_batch_norm_legit
    _native_batch_norm_legit_functional _native_batch_norm_legit_no_training _native_multi_head_attention
    _neg_view _neg_view_copy _pack_padded_sequence _pad_circular _pad_enum _pad_packed_sequence
    _padded_dense_to_jagged_forward _pdist_forward _prelu_kernel _reshape_alias _reshape_alias_copy
    _reshape_copy _reshape_from_tensor _safe_softmax _scaled_dot_product_attention_math
    _scaled_dot_product_cudnn_attention _scaled_dot_product_efficient_attention
    _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu
    _scaled_dot_product_fused_attention_overrideable _scaled_mm _shape_as_tensor _softmax _softmax_backward_data
    _stack _standard_gamma _thnn_fused_gru_cell _thnn_fused_lstm_cell _to_copy _to_cpu
    _transformer_encoder_layer_fwd _trilinear _unique _unique2 _unsafe_index _unsafe_index_put
    _unsafe_masked_index _unsafe_masked_index_put_accumulate _unsafe_view _upsample_bicubic2d_aa
    _upsample_bilinear2d_aa _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d
    _weight_int4pack_mm _weight_int4pack_mm_for_cpu _weight_int8pack_mm _weight_norm _weight_norm_interface
    _dyn_quant_matmul_4bit _dyn_quant_pack_4bit_weight _convert_weight_to_int4pack
    _convert_weight_to_int4pack_for_cpu _choose_qparams_per_tensor _make_per_tensor_quantized_tensor
    _make_per_channel_quantized_tensor
    """
)
# They change a tensor's or the program's bookkeeping, not its values.
BOOKKEEPING_OPERATORS = _words("set_data retain_grad requires_grad_ backward rename rename_ is_pinned pin_memory")
# String arguments that are one of a few words to their kernel. The name of a file is not among them.
WORD_ARGUMENTS = _words(
    """
    assert_msg padding UPLO driver norm reduce rounding_mode equation approximate p ord indexing interpolation mode
    padding_side side pad_mode api_name
    """
)
# TorchScript's own nodes: control flow, containers, constants, and properties of a tensor.
SCRIPT_NODES = _words(
    """
    Constant ConstantChunk CreateObject DictConstruct Enter EnumName EnumValue Exit GetAttr If
    ImplicitTensorToNum ListConstruct ListUnpack Loop ModuleContainerIndex NumToTensor Print RaiseException
    RangeLength SetAttr StringIndex TupleConstruct TupleIndex TupleSlice TupleUnpack Uninitialized abs data
    device dtype grad id index is_cpu is_cuda is_hpu is_ipu is_maia is_meta is_mkldnn is_mps is_mtia is_nested
    is_quantized is_sparse is_sparse_csr is_vulkan is_xla is_xpu isinstance itemsize layout max min name names
    nbytes rangelist requires_grad shape tolist type unchecked_cast unchecked_unwrap_optional
    """
)
# Its own functions of numbers, texts, lists and dictionaries, which the dispatcher does not know.
SCRIPT_FUNCTIONS = _words(
    """
    Bool Complex ComplexImplicit Delete Float FloatImplicit Generator Int IntImplicit ScalarImplicit Size
    __and__ __contains__ __derive_index __getitem__ __interpolate __is__ __isnot__ __lshift__ __not__ __or__
    __range_length __round_to_zero_floordiv __rshift__ __upsample __upsample_bilinear __upsample_nearest __xor__
    _get_tracing_state _grad_sum_to_size _infer_size _list_to_tensor _no_grad_embedding_renorm_ _no_grad_fill_
    _no_grad_normal_ _no_grad_uniform_ _no_grad_zero_ _pack_sequence _set_item _size_if_not_equal
    _tensor_to_list _unwrap_optional abs acos add all any append as_tensor asin atan atan2 bin broadcast_shapes
    ceil chr clear copy cos cosh count cpu degrees detach device dict dim div divmod einsum element_size
    endswith eq exp extend fabs factorial find floor floordiv fmod format gamma gcd ge get get_autocast_dtype
    get_device gt has_torch_function hash hex index insert is_autocast_cpu_enabled is_autocast_enabled
    is_complex is_contiguous is_floating_point is_grad_enabled is_non_overlapping_and_dense is_scripting
    is_strides_like_format isalpha isdecimal isdigit isfinite isinf islower isnan isupper item items join keys
    le len list log log10 log1p log2 lower lstrip lt mathremainder max min mod modf mul ne neg numel ones_like_
    ord partition percentFormat pop popitem pow radians remainder remove replace reverse round rstrip
    set_grad_enabled setdefault sin sinh size slice sort sorted split splitlines sqrt startswith storage_offset
    str stride strip sub sum tan tanh tensor to truediv type_as update upper values warn
    """
)

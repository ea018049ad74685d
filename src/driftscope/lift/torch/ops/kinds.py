"""Which kind of rounding each generic operator has: facts, as tables of names."""

from __future__ import annotations

_MOVES = """
alias alias_copy as_strided as_strided_copy _chunk_cat
as_strided_scatter block_diag cat channel_shuffle clone complex conj _conj
_conj_physical conj_physical constant_pad_nd contiguous copy diag diag_embed diagonal diagonal_copy diagonal_scatter
detach embedding expand expand_copy fill flip fliplr flipud gather im2col index index_copy index_fill index_select
lift_fresh_copy masked_fill masked_scatter masked_select movedim narrow narrow_copy native_channel_shuffle pad
permute permute_copy pixel_shuffle pixel_unshuffle positive reflection_pad1d reflection_pad2d reflection_pad3d
repeat repeat_interleave put _unsafe_masked_index
replication_pad1d replication_pad2d replication_pad3d reshape _reshape_alias
_reshape_copy roll rot90 select select_backward select_copy select_scatter slice slice_backward slice_copy
slice_scatter split split_with_sizes split_copy split_with_sizes_copy squeeze squeeze_copy stack t t_copy take
take_along_dim transpose transpose_copy tril triu unbind unbind_copy unfold unfold_copy unsafe_chunk unsafe_split
unsafe_split_with_sizes _unsafe_view _unsafe_index _unsafe_index_put unsqueeze unsqueeze_copy view view_as
view_as_complex view_as_real view_copy where zero zeros_like scatter real imag view_as_real_copy to_padded_tensor
_pack_padded_sequence _pad_packed_sequence lift diag_backward unfold_backward max_unpool2d max_unpool3d
zeros ones eye new_zeros new_ones ones_like _new_zeros_with_same_feature_meta
broadcast_in_dim collapse collapse_view copy_strided device_put rev split_dim view_of
"""
# Their content is nobody's: zeros, until it is written.
_UNWRITTEN = """
empty empty_like empty_strided new_empty new_empty_strided
"""
_SELECTIONS = """
abs neg relu relu6 clamp clamp_min clamp_max clip minimum maximum fmin fmax hardtanh amax amin aminmax _foreach_abs
threshold_backward _foreach_neg _foreach_maximum _foreach_minimum _foreach_clamp_min _foreach_clamp_max
max_pool2d max_pool1d max_pool3d adaptive_max_pool1d nan_to_num
"""
_ROUNDED = """
add sub subtract rsub mul multiply div divide true_divide sqrt reciprocal square addcmul addcdiv lerp hardsigmoid
hardswish leaky_relu prelu _prelu_kernel hypot native_dropout native_dropout_backward masked_scale deg2rad rad2deg
rrelu_with_noise _foreach_reciprocal dropout feature_dropout alpha_dropout _unsafe_masked_index_put_accumulate
leaky_relu_backward hardtanh_backward hardsigmoid_backward hardswish_backward sqrt_backward lerp_ ldexp polar
_foreach_add _foreach_mul _foreach_sub _foreach_div _foreach_addcmul _foreach_addcdiv _foreach_lerp _foreach_sqrt
arange linspace full full_like new_full scalar_tensor
"""
_SUMS = """
sum mean nansum nanmean cumsum prod cumprod var std var_mean std_mean norm linalg_vector_norm dist trace
avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d
_adaptive_avg_pool3d scatter_add scatter_reduce index_add index_reduce segment_reduce _segment_reduce
embedding_bag _embedding_bag _embedding_bag_forward_only nll_loss_forward nll_loss2d_forward nll_loss mse_loss
smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits soft_margin_loss multi_margin_loss
multilabel_margin_loss_forward kl_div poisson_nll_loss _ctc_loss embedding_dense_backward index_put
_index_put_impl col2im _foreach_sum reflection_pad1d_backward reflection_pad2d_backward
replication_pad1d_backward replication_pad2d_backward upsample_nearest1d_backward upsample_nearest2d_backward
cov corrcoef sum_to_size linalg_norm logcumsumexp _euclidean_dist
avg_pool2d_backward _adaptive_avg_pool2d_backward max_pool2d_with_indices_backward nll_loss_backward
histc bincount
"""

# Elementwise functions that carry no pointwise tag, linear algebra whose error is one of the whole result, and the
# backward kernels that a derivative inside a program calls.
_FUNCTIONS = """
gelu_backward tanh_backward sigmoid_backward silu_backward mish_backward log_sigmoid_forward log_sigmoid_backward
_softmax_backward_data _log_softmax_backward_data glu glu_backward glu_jvp softplus_backward elu_backward
native_layer_norm_backward native_group_norm_backward native_batch_norm_backward _fused_rms_norm_backward
convolution_backward _cdist_backward _pdist_backward grid_sampler_2d_backward grid_sampler_3d_backward
upsample_bilinear2d_backward upsample_bicubic2d_backward upsample_linear1d_backward upsample_trilinear3d_backward
linalg_inv_ex linalg_solve_ex _linalg_solve_ex linalg_cholesky_ex linalg_qr linalg_eigh linalg_eig _linalg_eigvals
linalg_eigvals linalg_eigvalsh _linalg_eigh _linalg_svd linalg_svd _linalg_det linalg_det _linalg_slogdet
linalg_slogdet linalg_lu linalg_lu_factor_ex linalg_lu_factor linalg_lu_solve linalg_ldl_factor_ex linalg_ldl_solve
linalg_solve_triangular triangular_solve linalg_matrix_exp linalg_householder_product linalg_lstsq linalg_cross cross
cholesky_solve cholesky_inverse cholesky geqrf ormqr lu_unpack linalg_pinv atol_rtol_tensor linalg_matrix_power pow
float_power angle erfinv affine_grid_generator native_norm cross_entropy_loss logit_backward trapezoid bilinear vander
_foreach_exp _foreach_norm _foreach_pow _foreach_log _foreach_tanh _foreach_sigmoid _foreach_sin _foreach_cos
binary_cross_entropy_backward mse_loss_backward smooth_l1_loss_backward huber_loss_backward _ctc_loss_backward
linspace logspace infinitely_differentiable_gelu_backward hann_window cosine_embedding_loss stft istft
hamming_window blackman_window bartlett_window kaiser_window fft_fftfreq fft_rfftfreq range
"""

# Of these, kernels whose error is what rounded operands would make: the condition of the problem decides its size.
_BACKWARD = """
linalg_inv_ex linalg_solve_ex _linalg_solve_ex linalg_cholesky_ex _linalg_det linalg_det _linalg_slogdet linalg_slogdet
linalg_lu_solve linalg_solve_triangular triangular_solve linalg_matrix_exp linalg_lstsq
cholesky_solve cholesky_inverse cholesky linalg_pinv linalg_matrix_power _linalg_eigh linalg_eigh linalg_eigvalsh
linalg_qr geqrf linalg_householder_product _linalg_svd linalg_svd linalg_lu linalg_lu_factor linalg_lu_factor_ex
linalg_ldl_factor_ex linalg_ldl_solve linalg_eig _linalg_eigvals linalg_eigvals
"""
BACKWARD_NAMES = frozenset(_BACKWARD.split())
# Eigenvalues of a matrix without symmetry have a condition of their own.
EIGENVALUE_NAMES = frozenset({"linalg_eig", "_linalg_eigvals", "linalg_eigvals"})

UNWRITTEN_NAMES = frozenset(_UNWRITTEN.split())
EXACT_NAMES = frozenset((_MOVES + _UNWRITTEN + _SELECTIONS).split())
ROUND_NAMES = frozenset(_ROUNDED.split())
SUM_NAMES = frozenset(_SUMS.split())
FUNCTION_NAMES = frozenset(_FUNCTIONS.split())

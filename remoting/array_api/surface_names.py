"""Public names of CuPy 14.2.0; made by record_surface.py, not by hand."""

SURFACE: dict[str, str] = {
    "cupy": """
        AxisError ComplexWarning DataSource ElementwiseKernel Inf Infinity
        ModuleDeprecationWarning NAN NINF NZERO NaN PINF PZERO RankWarning RawKernel RawModule
        ReductionKernel TooHardError VisibleDeprecationWarning abs absolute acos acosh add all
        allclose alltrue amax amin angle any append apply_along_axis apply_over_axes arange arccos
        arccosh arcsin arcsinh arctan arctan2 arctanh argmax argmin argpartition argsort argwhere
        around array array2string array_equal array_equiv array_repr array_split array_str
        asanyarray asarray asarray_chkfinite ascontiguousarray asfarray asfortranarray asin asinh
        asnumpy astype atan atan2 atanh atleast_1d atleast_2d atleast_3d average bartlett
        base_repr binary_repr bincount bitwise_and bitwise_count bitwise_invert bitwise_left_shift
        bitwise_not bitwise_or bitwise_right_shift bitwise_xor blackman bool bool_ broadcast
        broadcast_arrays broadcast_shapes broadcast_to byte byte_bounds c_ can_cast cbrt cdouble
        ceil cfloat choose clear_memo clip column_stack common_type complex128 complex64 complex_
        complexfloating compress concat concatenate conj conjugate convolve copy copysign copyto
        corrcoef correlate cos cosh count_nonzero cov cross csingle cuda cumprod cumproduct cumsum
        cumulative_prod cumulative_sum deg2rad degrees delete diag diag_indices diag_indices_from
        diagflat diagonal diff digitize disable_experimental_feature_warning disp divide divmod
        dot double dsplit dstack dtype e ediff1d einsum empty empty_like equal euler_gamma
        exceptions exp exp2 expand_dims expm1 extract eye fabs fft fill_diagonal find_common_type
        finfo fix flatiter flatnonzero flip fliplr flipud float16 float32 float64 float_
        float_power floating floor floor_divide fmax fmin fmod format_float_positional
        format_float_scientific format_parser frexp fromDlpack from_dlpack frombuffer fromfile
        fromfunction fromiter fromstring full full_like fuse gcd generic genfromtxt
        get_array_module get_array_wrap get_default_memory_pool get_default_pinned_memory_pool
        get_printoptions gradient greater greater_equal half hamming hanning heaviside histogram
        histogram2d histogramdd hsplit hstack hypot i0 identity iinfo imag in1d index_exp indices
        inexact inf infty inner int16 int32 int64 int8 int_ intc integer interp intersect1d intp
        invert is_available isclose iscomplex iscomplexobj isdtype isfinite isfortran isin isinf
        isnan isneginf isposinf isreal isrealobj isscalar issctype issubclass_ issubdtype
        issubsctype iterable ix_ kaiser kron lcm ldexp left_shift less less_equal lexsort lib
        linalg linspace load loadtxt log log10 log1p log2 logaddexp logaddexp2 logical_and
        logical_not logical_or logical_xor logspace long longlong make_aligned_dtype mask_indices
        matmul matrix_transpose max maximum may_share_memory mean median memoize meshgrid mgrid
        min min_scalar_type minimum mintypecode mod modf moveaxis msort multiply nan nan_to_num
        nanargmax nanargmin nancumprod nancumsum nanmax nanmean nanmedian nanmin nanprod nanstd
        nansum nanvar ndarray ndim ndindex negative newaxis nextafter nonzero not_equal number
        obj2sctype ogrid ones ones_like outer packbits pad partition percentile permute_dims pi
        piecewise place poly poly1d polyadd polyfit polymul polynomial polysub polyval positive
        pow power printoptions prod product promote_types ptp put put_along_axis putmask quantile
        r_ rad2deg radians random ravel ravel_multi_index real real_if_close reciprocal remainder
        repeat require reshape resize result_type right_shift rint roll rollaxis roots rot90 round
        round_ row_stack s_ safe_eval save savetxt savez savez_compressed sctype2char searchsorted
        select set_printoptions set_string_function setdiff1d setxor1d shape shares_memory short
        show_config sign signbit signedinteger sin sinc single singlecomplex sinh size sometrue
        sort sort_complex split sqrt square squeeze stack std subtract sum swapaxes take
        take_along_axis tan tanh tensordot testing tile trace transpose trapezoid trapz tri tril
        tril_indices tril_indices_from trim_zeros triu triu_indices triu_indices_from true_divide
        trunc typename typing ubyte ufunc uint uint16 uint32 uint64 uint8 uintc uintp ulong
        ulonglong union1d unique unique_all unique_counts unique_inverse unique_values unpackbits
        unravel_index unsignedinteger unwrap ushort vander var vdot vectorize vsplit vstack where
        who zeros zeros_like
    """,
    "cupy.linalg": """
        LinAlgError cholesky cond cross det eig eigh eigvals eigvalsh inv lstsq matmul
        matrix_power matrix_rank matrix_transpose norm pinv qr slogdet solve svd tensorinv
        tensorsolve
    """,
    "cupy.fft": """
        config fft fft2 fftfreq fftn fftshift hfft ifft ifft2 ifftn ifftshift ihfft irfft irfft2
        irfftn rfft rfft2 rfftfreq rfftn
    """,
    "cupy.random": """
        BitGenerator MRG32k3a Philox4x3210 RandomState XORWOW beta binomial bytes chisquare choice
        default_rng dirichlet exponential f gamma geometric get_random_state gumbel hypergeometric
        laplace logistic lognormal logseries multinomial multivariate_normal negative_binomial
        noncentral_chisquare noncentral_f normal pareto permutation poisson power rand randint
        randn random random_integers random_sample ranf rayleigh reset_states sample seed
        set_random_state shuffle standard_cauchy standard_exponential standard_gamma
        standard_normal standard_t triangular uniform vonmises wald weibull zipf
    """,
    "cupy.cuda": """
        BaseMemory CFunctionAllocator Device Event ExternalStream Function Graph ManagedMemory
        Memory MemoryAsync MemoryAsyncPool MemoryHook MemoryPointer MemoryPool Module PinnedMemory
        PinnedMemoryPointer PinnedMemoryPool PythonFunctionAllocator Stream UnownedMemory alloc
        alloc_pinned_memory common compiler cub device driver function get_allocator
        get_cublas_handle get_cuda_path get_current_stream get_device_id get_elapsed_time
        get_hipcc_path get_local_runtime_version get_nvcc_path get_rocm_path graph is_available
        malloc_async malloc_managed memory memory_hook memory_hooks nvrtc nvtx pinned_memory
        profile profiler runtime set_allocator set_pinned_memory_allocator stream texture thrust
        using_allocator
    """,
    "cupy.cuda.runtime": """
        CUDARuntimeError CUDA_C_16F CUDA_C_32F CUDA_C_64F CUDA_C_8I CUDA_C_8U CUDA_R_16BF
        CUDA_R_16F CUDA_R_32F CUDA_R_64F CUDA_R_8I CUDA_R_8U MemPoolProps PointerAttributes
        check_status createSurfaceObject createTextureObject cudaAddressModeBorder
        cudaAddressModeClamp cudaAddressModeMirror cudaAddressModeWrap cudaArrayDefault
        cudaArraySurfaceLoadStore cudaChannelFormatKindFloat cudaChannelFormatKindNone
        cudaChannelFormatKindSigned cudaChannelFormatKindUnsigned cudaCpuDeviceId
        cudaDevAttrAsyncEngineCount cudaDevAttrCanFlushRemoteWrites cudaDevAttrCanMapHostMemory
        cudaDevAttrCanUseHostPointerForRegisteredMem cudaDevAttrClockRate cudaDevAttrComputeMode
        cudaDevAttrComputePreemptionSupported cudaDevAttrConcurrentKernels
        cudaDevAttrConcurrentManagedAccess cudaDevAttrCooperativeLaunch
        cudaDevAttrCooperativeMultiDeviceLaunch cudaDevAttrDirectManagedMemAccessFromHost
        cudaDevAttrEccEnabled cudaDevAttrGPUDirectRDMAFlushWritesOptions
        cudaDevAttrGPUDirectRDMASupported cudaDevAttrGPUDirectRDMAWritesOrdering
        cudaDevAttrGlobalL1CacheSupported cudaDevAttrGlobalMemoryBusWidth cudaDevAttrGpuOverlap
        cudaDevAttrHostNativeAtomicSupported cudaDevAttrHostRegisterReadOnlySupported
        cudaDevAttrHostRegisterSupported cudaDevAttrIntegrated cudaDevAttrIsMultiGpuBoard
        cudaDevAttrKernelExecTimeout cudaDevAttrL2CacheSize cudaDevAttrLocalL1CacheSupported
        cudaDevAttrManagedMemory cudaDevAttrMaxBlockDimX cudaDevAttrMaxBlockDimY
        cudaDevAttrMaxBlockDimZ cudaDevAttrMaxBlocksPerMultiprocessor cudaDevAttrMaxGridDimX
        cudaDevAttrMaxGridDimY cudaDevAttrMaxGridDimZ cudaDevAttrMaxPitch
        cudaDevAttrMaxRegistersPerBlock cudaDevAttrMaxRegistersPerMultiprocessor
        cudaDevAttrMaxSharedMemoryPerBlock cudaDevAttrMaxSharedMemoryPerBlockOptin
        cudaDevAttrMaxSharedMemoryPerMultiprocessor cudaDevAttrMaxSurface1DLayeredLayers
        cudaDevAttrMaxSurface1DLayeredWidth cudaDevAttrMaxSurface1DWidth
        cudaDevAttrMaxSurface2DHeight cudaDevAttrMaxSurface2DLayeredHeight
        cudaDevAttrMaxSurface2DLayeredLayers cudaDevAttrMaxSurface2DLayeredWidth
        cudaDevAttrMaxSurface2DWidth cudaDevAttrMaxSurface3DDepth cudaDevAttrMaxSurface3DHeight
        cudaDevAttrMaxSurface3DWidth cudaDevAttrMaxSurfaceCubemapLayeredLayers
        cudaDevAttrMaxSurfaceCubemapLayeredWidth cudaDevAttrMaxSurfaceCubemapWidth
        cudaDevAttrMaxTexture1DLayeredLayers cudaDevAttrMaxTexture1DLayeredWidth
        cudaDevAttrMaxTexture1DLinearWidth cudaDevAttrMaxTexture1DMipmappedWidth
        cudaDevAttrMaxTexture1DWidth cudaDevAttrMaxTexture2DGatherHeight
        cudaDevAttrMaxTexture2DGatherWidth cudaDevAttrMaxTexture2DHeight
        cudaDevAttrMaxTexture2DLayeredHeight cudaDevAttrMaxTexture2DLayeredLayers
        cudaDevAttrMaxTexture2DLayeredWidth cudaDevAttrMaxTexture2DLinearHeight
        cudaDevAttrMaxTexture2DLinearPitch cudaDevAttrMaxTexture2DLinearWidth
        cudaDevAttrMaxTexture2DMipmappedHeight cudaDevAttrMaxTexture2DMipmappedWidth
        cudaDevAttrMaxTexture2DWidth cudaDevAttrMaxTexture3DDepth cudaDevAttrMaxTexture3DDepthAlt
        cudaDevAttrMaxTexture3DHeight cudaDevAttrMaxTexture3DHeightAlt
        cudaDevAttrMaxTexture3DWidth cudaDevAttrMaxTexture3DWidthAlt
        cudaDevAttrMaxTextureCubemapLayeredLayers cudaDevAttrMaxTextureCubemapLayeredWidth
        cudaDevAttrMaxTextureCubemapWidth cudaDevAttrMaxThreadsPerBlock
        cudaDevAttrMaxThreadsPerMultiProcessor cudaDevAttrMaxTimelineSemaphoreInteropSupported
        cudaDevAttrMemoryClockRate cudaDevAttrMemoryPoolSupportedHandleTypes
        cudaDevAttrMemoryPoolsSupported cudaDevAttrMultiGpuBoardGroupID
        cudaDevAttrMultiProcessorCount cudaDevAttrPageableMemoryAccess
        cudaDevAttrPageableMemoryAccessUsesHostPageTables cudaDevAttrPciBusId
        cudaDevAttrPciDeviceId cudaDevAttrPciDomainId cudaDevAttrReserved92 cudaDevAttrReserved93
        cudaDevAttrReserved94 cudaDevAttrReservedSharedMemoryPerBlock
        cudaDevAttrSingleToDoublePrecisionPerfRatio cudaDevAttrSparseCudaArraySupported
        cudaDevAttrStreamPrioritiesSupported cudaDevAttrSurfaceAlignment cudaDevAttrTccDriver
        cudaDevAttrTextureAlignment cudaDevAttrTexturePitchAlignment
        cudaDevAttrTotalConstantMemory cudaDevAttrUnifiedAddressing cudaDevAttrWarpSize
        cudaFilterModeLinear cudaFilterModePoint cudaGraphDebugDotFlagsConditionalNodeParams
        cudaGraphDebugDotFlagsEventNodeParams cudaGraphDebugDotFlagsExtSemasSignalNodeParams
        cudaGraphDebugDotFlagsExtSemasWaitNodeParams cudaGraphDebugDotFlagsHandles
        cudaGraphDebugDotFlagsHostNodeParams cudaGraphDebugDotFlagsKernelNodeAttributes
        cudaGraphDebugDotFlagsKernelNodeParams cudaGraphDebugDotFlagsMemcpyNodeParams
        cudaGraphDebugDotFlagsMemsetNodeParams cudaGraphDebugDotFlagsVerbose cudaInvalidDeviceId
        cudaIpcMemLazyEnablePeerAccess cudaLimitDevRuntimePendingLaunchCount
        cudaLimitDevRuntimeSyncDepth cudaLimitMallocHeapSize cudaLimitMaxL2FetchGranularity
        cudaLimitPrintfFifoSize cudaLimitStackSize cudaMemAdviseSetAccessedBy
        cudaMemAdviseSetPreferredLocation cudaMemAdviseSetReadMostly cudaMemAdviseUnsetAccessedBy
        cudaMemAdviseUnsetPreferredLocation cudaMemAdviseUnsetReadMostly
        cudaMemAllocationTypePinned cudaMemAttachGlobal cudaMemAttachHost cudaMemAttachSingle
        cudaMemHandleTypeNone cudaMemHandleTypePosixFileDescriptor cudaMemLocationTypeDevice
        cudaMemLocationTypeHost cudaMemLocationTypeHostNuma cudaMemLocationTypeHostNumaCurrent
        cudaMemLocationTypeInvalid cudaMemPoolAttrReleaseThreshold
        cudaMemPoolAttrReservedMemCurrent cudaMemPoolAttrReservedMemHigh
        cudaMemPoolAttrUsedMemCurrent cudaMemPoolAttrUsedMemHigh
        cudaMemPoolReuseAllowInternalDependencies cudaMemPoolReuseAllowOpportunistic
        cudaMemPoolReuseFollowEventDependencies cudaMemoryTypeDevice cudaMemoryTypeHost
        cudaReadModeElementType cudaReadModeNormalizedFloat cudaResourceTypeArray
        cudaResourceTypeLinear cudaResourceTypeMipmappedArray cudaResourceTypePitch2D
        destroySurfaceObject destroyTextureObject deviceCanAccessPeer deviceDisablePeerAccess
        deviceEnablePeerAccess deviceGetAttribute deviceGetByPCIBusId deviceGetDefaultMemPool
        deviceGetLimit deviceGetMemPool deviceGetPCIBusId deviceSetLimit deviceSetMemPool
        deviceSynchronize driverGetVersion eventBlockingSync eventCreate eventCreateWithFlags
        eventDefault eventDestroy eventDisableTiming eventElapsedTime eventInterprocess eventQuery
        eventRecord eventSynchronize free freeArray freeAsync freeHost getDevice getDeviceCount
        getDeviceProperties graphDebugDotPrint graphDestroy graphExecDestroy graphInstantiate
        graphLaunch graphUpload hostAlloc hostAllocDefault hostAllocMapped hostAllocPortable
        hostAllocWriteCombined hostRegister hostUnregister ipcCloseMemHandle ipcGetEventHandle
        ipcGetMemHandle ipcOpenEventHandle ipcOpenMemHandle is_hip launchHostFunc malloc
        malloc3DArray mallocArray mallocAsync mallocFromPoolAsync mallocManaged memAdvise
        memGetInfo memPoolCreate memPoolDestroy memPoolGetAttribute memPoolSetAttribute
        memPoolTrimTo memPrefetchAsync memcpy memcpy2D memcpy2DAsync memcpy2DFromArray
        memcpy2DFromArrayAsync memcpy2DToArray memcpy2DToArrayAsync memcpy3D memcpy3DAsync
        memcpyAsync memcpyDefault memcpyDeviceToDevice memcpyDeviceToHost memcpyHostToDevice
        memcpyHostToHost memcpyPeer memcpyPeerAsync memoryTypeDevice memoryTypeHost
        memoryTypeManaged memoryTypeUnregistered memset memsetAsync pointerGetAttributes
        pointerGetMemoryType profilerStart profilerStop runtimeGetVersion setDevice
        streamAddCallback streamBeginCapture streamCaptureModeGlobal streamCaptureModeRelaxed
        streamCaptureModeThreadLocal streamCaptureStatusActive streamCaptureStatusInvalidated
        streamCaptureStatusNone streamCreate streamCreateWithFlags streamCreateWithPriority
        streamDefault streamDestroy streamEndCapture streamGetFlags streamGetPriority
        streamIsCapturing streamLegacy streamNonBlocking streamPerThread streamQuery
        streamSynchronize streamWaitEvent
    """,
    "cupy.cuda.driver": """
        CUDADriverError CUDA_ERROR_INVALID_VALUE CU_AD_FORMAT_FLOAT CU_AD_FORMAT_HALF
        CU_AD_FORMAT_SIGNED_INT16 CU_AD_FORMAT_SIGNED_INT32 CU_AD_FORMAT_SIGNED_INT8
        CU_AD_FORMAT_UNSIGNED_INT16 CU_AD_FORMAT_UNSIGNED_INT32 CU_AD_FORMAT_UNSIGNED_INT8
        CU_FUNC_ATTRIBUTE_BINARY_VERSION CU_FUNC_ATTRIBUTE_CACHE_MODE_CA
        CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK
        CU_FUNC_ATTRIBUTE_NUM_REGS CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
        CU_FUNC_ATTRIBUTE_PTX_VERSION CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES CU_JIT_CACHE_MODE
        CU_JIT_ERROR_LOG_BUFFER CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES CU_JIT_FALLBACK_STRATEGY
        CU_JIT_FAST_COMPILE CU_JIT_FMA CU_JIT_FTZ CU_JIT_GENERATE_DEBUG_INFO
        CU_JIT_GENERATE_LINE_INFO CU_JIT_GLOBAL_SYMBOL_ADDRESSES CU_JIT_GLOBAL_SYMBOL_COUNT
        CU_JIT_GLOBAL_SYMBOL_NAMES CU_JIT_INFO_LOG_BUFFER CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES
        CU_JIT_INPUT_CUBIN CU_JIT_INPUT_FATBINARY CU_JIT_INPUT_LIBRARY CU_JIT_INPUT_NVVM
        CU_JIT_INPUT_OBJECT CU_JIT_INPUT_PTX CU_JIT_LOG_VERBOSE CU_JIT_LTO CU_JIT_MAX_REGISTERS
        CU_JIT_NEW_SM3X_OPT CU_JIT_NUM_OPTIONS CU_JIT_OPTIMIZATION_LEVEL CU_JIT_PREC_DIV
        CU_JIT_PREC_SQRT CU_JIT_TARGET CU_JIT_TARGET_FROM_CUCONTEXT CU_JIT_THREADS_PER_BLOCK
        CU_JIT_WALL_TIME CU_TRSA_OVERRIDE_FORMAT CU_TRSF_NORMALIZED_COORDINATES
        CU_TRSF_READ_AS_INTEGER CU_TRSF_SRGB CU_TR_ADDRESS_MODE_BORDER CU_TR_ADDRESS_MODE_CLAMP
        CU_TR_ADDRESS_MODE_MIRROR CU_TR_ADDRESS_MODE_WRAP CU_TR_FILTER_MODE_LINEAR
        CU_TR_FILTER_MODE_POINT check_status ctxCreate ctxDestroy ctxGetCurrent ctxGetDevice
        ctxSetCurrent devicePrimaryCtxRelease funcGetAttribute funcSetAttribute get_build_version
        launchCooperativeKernel launchKernel linkAddData linkAddFile linkComplete linkCreate
        linkDestroy moduleGetFunction moduleGetGlobal moduleLoad moduleLoadData moduleUnload
        occupancyMaxActiveBlocksPerMultiprocessor occupancyMaxPotentialBlockSize streamGetCtx
    """,
    "cupy.exceptions": """
        AxisError ComplexWarning ModuleDeprecationWarning RankWarning TooHardError
        VisibleDeprecationWarning
    """,
    "cupy.lib.stride_tricks": """
        as_strided sliding_window_view
    """,
    "cupy.polynomial.polynomial": """
        polycompanion polyval polyvalfromroots polyvander
    """,
    "cupy.polynomial.polyutils": """
        as_series operator trimcoef trimseq
    """,
    "cupyx": """
        DeviceSynchronized GeneralizedUFunc allow_synchronize empty_like_pinned empty_pinned
        errstate get_runtime_info geterr linalg optimizing profiler rsqrt scatter_add scatter_max
        scatter_min scipy seterr time zeros_like_pinned zeros_pinned
    """,
    "cupyx.scipy.fft": """
        dct dctn dst dstn fft fft2 fftfreq fftn fftshift fht get_fft_plan hfft hfft2 hfftn idct
        idctn idst idstn ifft ifft2 ifftn ifftshift ifht ihfft ihfft2 ihfftn irfft irfft2 irfftn
        next_fast_len rfft rfft2 rfftfreq rfftn
    """,
    "cupyx.scipy.fftpack": """
        fft fft2 fftn get_fft_plan ifft ifft2 ifftn irfft rfft
    """,
    "cupyx.scipy.interpolate": """
        Akima1DInterpolator BPoly BSpline BarycentricInterpolator CloughTocher2DInterpolator
        CubicHermiteSpline CubicSpline InterpolatedUnivariateSpline KroghInterpolator
        LSQUnivariateSpline LinearNDInterpolator NdBSpline NdPPoly NearestNDInterpolator PPoly
        PchipInterpolator RBFInterpolator RegularGridInterpolator UnivariateSpline
        barycentric_interpolate interp1d interpn krogh_interpolate make_interp_spline
        make_lsq_spline pchip pchip_interpolate splantider splder
    """,
    "cupyx.scipy.linalg": """
        bandwidth block_diag circulant companion convolution_matrix dft expm fiedler
        fiedler_companion hadamard hankel helmert hilbert khatri_rao kron leslie lu lu_factor
        lu_solve solve_triangular toeplitz
    """,
    "cupyx.scipy.ndimage": """
        affine_transform binary_closing binary_dilation binary_erosion binary_fill_holes
        binary_hit_or_miss binary_opening binary_propagation black_tophat center_of_mass convolve
        convolve1d correlate correlate1d distance_transform_edt extrema find_objects
        fourier_ellipsoid fourier_gaussian fourier_shift fourier_uniform gaussian_filter
        gaussian_filter1d gaussian_gradient_magnitude gaussian_laplace generate_binary_structure
        generic_filter generic_filter1d generic_gradient_magnitude generic_laplace grey_closing
        grey_dilation grey_erosion grey_opening histogram iterate_structure label
        labeled_comprehension laplace map_coordinates maximum maximum_filter maximum_filter1d
        maximum_position mean median median_filter minimum minimum_filter minimum_filter1d
        minimum_position morphological_gradient morphological_laplace percentile_filter prewitt
        rank_filter rotate shift sobel spline_filter spline_filter1d standard_deviation sum
        sum_labels uniform_filter uniform_filter1d value_indices variance white_tophat zoom
    """,
    "cupyx.scipy.optimize": """

    """,
    "cupyx.scipy.signal": """
        BadCoefficients CZT StateSpace TransferFunction ZerosPolesGain ZoomFFT abcd_normalize
        argrelextrema argrelmax argrelmin band_stop_obj bilinear bilinear_zpk bode buttap butter
        buttord cheb1ap cheb1ord cheb2ap cheb2ord cheby1 cheby2 check_COLA check_NOLA chirp
        choose_conv_method coherence cont2discrete convolve convolve2d correlate correlate2d
        correlation_lags csd cspline1d cspline1d_eval cspline2d cwt czt czt_points dbode decimate
        deconvolve detrend dfreqresp dimpulse dlsim dlti dstep ellip ellipap ellipord fftconvolve
        filtfilt find_peaks findfreqs firls firwin firwin2 freqresp freqs freqs_zpk freqz
        freqz_sos freqz_zpk gammatone gauss_spline gausspulse get_window group_delay hilbert
        hilbert2 iircomb iirdesign iirfilter iirnotch iirpeak impulse invres invresz istft
        kaiser_atten kaiser_beta kaiserord lfilter lfilter_zi lfiltic lombscargle lp2bp lp2bp_zpk
        lp2bs lp2bs_zpk lp2hp lp2hp_zpk lp2lp lp2lp_zpk lsim lti max_len_seq medfilt medfilt2d
        minimum_phase morlet morlet2 normalize oaconvolve order_filter peak_prominences
        peak_widths periodogram place_poles qmf qspline1d qspline1d_eval qspline2d resample
        resample_poly residue residuez ricker savgol_coeffs savgol_filter sawtooth sepfir2d sos2tf
        sos2zpk sosfilt sosfilt_zi sosfiltfilt sosfreqz spectrogram spline_filter square ss2tf
        ss2zpk step stft sweep_poly symiirorder1 symiirorder2 tf2sos tf2ss tf2zpk unique_roots
        unit_impulse upfirdn vectorstrength welch wiener windows zoom_fft zpk2sos zpk2ss zpk2tf
    """,
    "cupyx.scipy.signal.windows": """
        barthann bartlett blackman blackmanharris bohman boxcar chebwin cosine exponential flattop
        gaussian general_cosine general_gaussian general_hamming get_window hamming hann kaiser
        kaiser_bessel_derived lanczos nuttall parzen taylor triang tukey
    """,
    "cupyx.scipy.sparse": """
        SparseEfficiencyWarning SparseWarning block_array block_diag bmat coo_array coo_matrix
        csc_array csc_matrix csr_array csr_matrix dia_array dia_matrix diags diags_array eye
        eye_array find get_index_dtype hstack identity issparse isspmatrix isspmatrix_coo
        isspmatrix_csc isspmatrix_csr isspmatrix_dia kron kronsum linalg matrix_transpose
        permute_dims rand random random_array safely_cast_index_arrays sparray spdiags spmatrix
        swapaxes tril triu vstack
    """,
    "cupyx.scipy.sparse.csgraph": """
        connected_components
    """,
    "cupyx.scipy.sparse.linalg": """
        LinearOperator SuperLU aslinearoperator bicgstab cg cgs eigsh factorized gmres lobpcg lsmr
        lsqr matrix_power minres norm spilu splu spsolve spsolve_triangular svds
    """,
    "cupyx.scipy.spatial": """
        Delaunay KDTree delaunay_2d distance distance_matrix
    """,
    "cupyx.scipy.spatial.distance": """
        MetricInfo canberra cdist chebyshev check_soft_dependencies cityblock correlation cosine
        cuvs_available distance_matrix euclidean hamming hellinger jensenshannon kl_divergence
        minkowski pdist pylibraft_available russellrao sqeuclidean
    """,
    "cupyx.scipy.special": """
        bdtr bdtrc bdtri beta betainc betaincinv betaln binom boxcox boxcox1p btdtr btdtri cbrt
        chdtr chdtrc chdtri cosdg cosm1 cotdg digamma ellipeinc ellipj ellipk ellipkinc ellipkm1
        entr erf erfc erfcinv erfcx erfinv exp1 exp10 exp2 expi expit expm1 expn exprel fdtr fdtrc
        fdtri gamma gammainc gammaincc gammainccinv gammaincinv gammaln gammasgn gdtr gdtrc huber
        i0 i0e i1 i1e inv_boxcox inv_boxcox1p j0 j1 k0 k0e k1 k1e kl_div lambertw log1p log_expit
        log_ndtr log_softmax loggamma logit logsumexp lpmv multigammaln nbdtr nbdtrc nbdtri ndtr
        ndtri pdtr pdtrc pdtri poch polygamma pseudo_huber psi radian rel_entr rgamma round shichi
        sici sinc sindg softmax sph_harm sph_harm_y spherical_yn tandg wright_bessel xlog1py xlogy
        y0 y1 yn zeta zetac
    """,
    "cupyx.scipy.stats": """
        boxcox_llf entropy trim_mean zmap zscore
    """,
    "cupy.ndarray": """
        T all any argmax argmin argpartition argsort astype base byteswap choose clip compress
        conj conjugate copy cstruct cumprod cumsum data device diagonal dot dtype dump dumps fill
        flags flat flatten get imag item itemsize mT max mdspan mean min nbytes ndim nonzero
        partition prod ptp put ravel real reduced_view repeat reshape round scatter_add
        scatter_max scatter_min searchsorted set shape size sort squeeze std strides sum swapaxes
        take toDlpack tobytes tofile tolist trace transpose var view
    """,
    "cupy.ufunc": """
        accumulate at name nargs nin nout outer reduce reduceat types
    """,
    "cupy.poly1d": """
        c coef coefficients coeffs deriv get integ o order r roots set variable
    """,
    "cupy.flatiter": """
        base copy
    """,
    "cupy.broadcast": """
        nd shape size values
    """,
    "cupy.ElementwiseKernel": """
        cached_code cached_codes in_params kwargs name nargs nin no_return nout operation
        out_params params preamble reduce_dims return_tuple
    """,
    "cupy.ReductionKernel": """
        cached_code cached_codes identity in_params map_expr name nargs nin nout options
        out_params params post_map_expr preamble reduce_dims reduce_expr reduce_type
    """,
    "cupy.RawKernel": """
        attributes backend binary_version cache_mode_ca code compile const_size_bytes
        enable_cooperative_groups file_path kernel local_size_bytes max_dynamic_shared_size_bytes
        max_threads_per_block name num_regs options preferred_shared_memory_carveout ptx_version
        shared_size_bytes
    """,
    "cupy.RawModule": """
        backend code compile enable_cooperative_groups file_path get_function get_global module
        name_expressions options
    """,
    "cupy.random.RandomState": """
        beta binomial chisquare choice dirichlet exponential f gamma geometric gumbel
        hypergeometric laplace logistic lognormal logseries multivariate_normal negative_binomial
        noncentral_chisquare noncentral_f normal pareto permutation poisson power rand randint
        randn random_sample rayleigh seed shuffle standard_cauchy standard_exponential
        standard_gamma standard_normal standard_t tomaxint triangular uniform vonmises wald
        weibull zipf
    """,
    "cupy.random.Generator": """
        beta binomial chisquare dirichlet exponential f gamma geometric hypergeometric integers
        logseries poisson power random standard_exponential standard_gamma standard_normal uniform
    """,
    "cupy.cuda.Device": """
        attributes compute_capability cublas_handle cusolver_handle cusolver_sp_handle
        cusparse_handle cutensor_handle from_pci_bus_id id mem_info pci_bus_id synchronize use
    """,
    "cupy.cuda.Stream": """
        add_callback begin_capture done end_capture from_external is_capturing is_non_blocking
        launch_host_func null priority ptds record synchronize use wait_event
    """,
    "cupy.cuda.Event": """
        done record synchronize
    """,
    "cupy.cuda.MemoryPool": """
        free_all_blocks free_all_free free_bytes get_limit malloc n_free_blocks set_limit
        total_bytes used_bytes
    """,
    "cupy.cuda.MemoryPointer": """
        copy_from copy_from_async copy_from_device copy_from_device_async copy_from_host
        copy_from_host_async copy_to_host copy_to_host_async device device_id mem memset
        memset_async ptr
    """,
}

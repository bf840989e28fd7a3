"""Kernels that use what Hopper GPUs have: warpgroup products, TMA, mbarriers, warp specialization, clusters.

There is nothing of JAX in this file. Products are of row-major matrices, [M, K] by [K, N], accumulated in
float32; with TMA any sizes will do whose rows are multiples of 16 bytes.
"""

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

# Triton 3.9 has these under other names than 3.6.
_tma_load = getattr(tma, "async_load", tma.async_copy_global_to_shared)
_tma_store = getattr(tma, "async_store", tma.async_copy_shared_to_global)
_copy_async = getattr(async_copy, "async_load", async_copy.async_copy_global_to_shared)
_synchronize = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier

# --- Triton ------------------------------------------------------------------------------------


@triton.jit
def _tile_offsets(
    tile, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr
):  # fmt: skip
    """The first row and column of a tile; neighbours share up to `GROUP` rows of tiles, for the L2 cache."""
    tiles_m = tl.cdiv(M, BLOCK_M)
    in_group = GROUP * tl.cdiv(N, BLOCK_N)
    first = tile // in_group * GROUP
    size = tl.minimum(tiles_m - first, GROUP)
    return (first + tile % in_group % size) * BLOCK_M, tile % in_group // size * BLOCK_N


@triton.jit
def persistent_matmul(
    a_ptr,
    b_ptr,
    c_ptr,
    M,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    WARP_SPECIALIZE: tl.constexpr,
):
    """Each program takes every so many tiles, through TMA descriptors that it makes itself."""
    a_desc = tl.make_tensor_descriptor(a_ptr, [M, K], [K, 1], [BLOCK_M, BLOCK_K])
    b_desc = tl.make_tensor_descriptor(b_ptr, [K, N], [N, 1], [BLOCK_K, BLOCK_N])
    c_desc = tl.make_tensor_descriptor(c_ptr, [M, N], [N, 1], [BLOCK_M, BLOCK_N])
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), warp_specialize=WARP_SPECIALIZE):
        row, column = _tile_offsets(tile, M, N, BLOCK_M, BLOCK_N, GROUP)
        acc = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
        for k in tl.range(0, K, BLOCK_K):
            acc = tl.dot(a_desc.load([row, k]), b_desc.load([k, column]), acc)
        c_desc.store([row, column], acc.to(c_ptr.dtype.element_ty))


@triton.jit
def _product_of_tiles(descriptors, row, column, K, BLOCK_K: tl.constexpr):
    """A tile of the product of the matrices behind a tuple of two descriptors."""
    a_desc, b_desc = descriptors
    BLOCK_M: tl.constexpr = a_desc.block_shape[0]
    BLOCK_N: tl.constexpr = b_desc.block_shape[1]
    acc = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    for k in tl.range(0, K, BLOCK_K):
        acc = tl.dot(a_desc.load([row, k]), b_desc.load([k, column]), acc)
    return acc


@triton.jit
def matmul_with_a_tuple_of_descriptors(
    pointers,
    sizes,
    c_ptr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """One tile for each program; the kernel makes descriptors of the pointers, and a tuple of these."""
    M, N, K = sizes
    a_desc = tl.make_tensor_descriptor(pointers[0], [M, K], [K, 1], [BLOCK_M, BLOCK_K])
    b_desc = tl.make_tensor_descriptor(pointers[1], [K, N], [N, 1], [BLOCK_K, BLOCK_N])
    c_desc = tl.make_tensor_descriptor(c_ptr, [M, N], [N, 1], [BLOCK_M, BLOCK_N])
    row, column = tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N
    acc = _product_of_tiles((a_desc, b_desc), row, column, K, BLOCK_K)
    c_desc.store([row, column], acc.to(c_ptr.dtype.element_ty))


@triton.jit
def matmul_of_a_tuple_of_descriptors(descriptors, c_desc, K, BLOCK_K: tl.constexpr):
    """One tile for each program; all descriptors are made on the host, two of them come in a tuple."""
    row = tl.program_id(0) * c_desc.block_shape[0]
    column = tl.program_id(1) * c_desc.block_shape[1]
    acc = _product_of_tiles(descriptors, row, column, K, BLOCK_K)
    c_desc.store([row, column], acc.to(c_desc.dtype))


@triton.jit
def ranks_in_cluster(rank_ptr, size_ptr, BLOCK: tl.constexpr):
    """Writes of each element which thread block of its cluster works on it, and of how many."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    rank = tl.inline_asm_elementwise(
        "mov.u32 $0, %cluster_ctarank; // $1", "=r,r", [offsets], dtype=tl.int32, is_pure=False, pack=1
    )
    size = tl.inline_asm_elementwise(
        "mov.u32 $0, %cluster_nctarank; // $1", "=r,r", [offsets], dtype=tl.int32, is_pure=False, pack=1
    )
    tl.store(rank_ptr + offsets, rank)
    tl.store(size_ptr + offsets, size)


@triton.jit
def polynomial(x_ptr, out_ptr, n, DEGREE: tl.constexpr, BLOCK: tl.constexpr):
    """A polynomial of many values a thread, for which the compiler takes as many registers as it may."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    result = tl.full([BLOCK], 1.0, dtype=tl.float32)
    for _ in tl.static_range(DEGREE):
        result = result * x + 1.0
    tl.store(out_ptr + offsets, result, mask=mask)


# --- Gluon: parts of products ------------------------------------------------------------------


@gluon.jit
def _offsets_of_tile(tile, M, N, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, GROUP: gl.constexpr):
    """As `_tile_offsets`."""
    tiles_m = gl.cdiv(M, BLOCK_M)
    in_group = GROUP * gl.cdiv(N, BLOCK_N)
    first = tile // in_group * GROUP
    size = gl.minimum(tiles_m - first, GROUP)
    return (first + tile % in_group % size) * BLOCK_M, tile % in_group // size * BLOCK_N


@gluon.jit
def _load_tiles(a_desc, b_desc, row, column, k, a_tile, b_tile, loaded, wanted):
    """Starts the loads of two tiles, which complete the phase of the barrier `loaded`, if `wanted`."""
    mbarrier.expect(loaded, a_desc.block_type.nbytes + b_desc.block_type.nbytes, pred=wanted)
    _tma_load(a_desc, [row, k], loaded, a_tile, pred=wanted)
    _tma_load(b_desc, [k, column], loaded, b_tile, pred=wanted)


@gluon.jit
def _barriers(COUNT: gl.constexpr):
    """Barriers in shared memory, for one arrival a phase each."""
    barriers = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(COUNT):
        mbarrier.init(barriers.index(i), count=1)
    return barriers


@gluon.jit
def _store_tile(c_desc, row, column, acc, c_tile):
    """Starts the store of an accumulator, through shared memory that no earlier store reads any more."""
    c_tile.store(acc.to(c_desc.dtype))
    fence_async_shared()
    _synchronize()
    _tma_store(c_desc, [row, column], c_tile)


@gluon.jit
def _multiply_tile(a_desc, b_desc, c_desc, STAGES: gl.constexpr, GROUP: gl.constexpr):
    """One tile of a product for each program, with `STAGES` pairs of tiles on their way to it."""
    BLOCK_M: gl.constexpr = c_desc.block_shape[0]
    BLOCK_N: gl.constexpr = c_desc.block_shape[1]
    BLOCK_K: gl.constexpr = a_desc.block_shape[1]
    WARPS: gl.constexpr = gl.num_warps()
    product: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, BLOCK_N, 16])
    row, column = _offsets_of_tile(
        gl.program_id(0), c_desc.shape[0], c_desc.shape[1], BLOCK_M, BLOCK_N, GROUP
    )
    K = a_desc.shape[1]
    a_tiles = gl.allocate_shared_memory(a_desc.dtype, [STAGES, BLOCK_M, BLOCK_K], a_desc.layout)
    b_tiles = gl.allocate_shared_memory(b_desc.dtype, [STAGES, BLOCK_K, BLOCK_N], b_desc.layout)
    loaded = _barriers(STAGES)
    fence_async_shared()
    _synchronize()
    for early in gl.static_range(STAGES - 1):
        k = early * BLOCK_K
        _load_tiles(
            a_desc,
            b_desc,
            row,
            column,
            k,
            a_tiles.index(early),
            b_tiles.index(early),
            loaded.index(early),
            k < K,
        )
    acc = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, product)
    for step in range(gl.cdiv(K, BLOCK_K)):
        slot = step % STAGES
        mbarrier.wait(loaded.index(slot), step // STAGES & 1)
        acc = warpgroup_mma(a_tiles.index(slot), b_tiles.index(slot), acc, is_async=True)
        # The product before this one is done in all warps: the next tiles go where its tiles were.
        acc = warpgroup_mma_wait(1, deps=[acc])
        _synchronize()
        ahead = (step + STAGES - 1) * BLOCK_K
        slot = (step + STAGES - 1) % STAGES
        _load_tiles(
            a_desc,
            b_desc,
            row,
            column,
            ahead,
            a_tiles.index(slot),
            b_tiles.index(slot),
            loaded.index(slot),
            ahead < K,
        )
    acc = warpgroup_mma_wait(0, deps=[acc])
    # Takes the memory of the other tiles, which are not used any more.
    c_tile = gl.allocate_shared_memory(c_desc.dtype, [BLOCK_M, BLOCK_N], c_desc.layout)
    _store_tile(c_desc, row, column, acc, c_tile)
    tma.store_wait(0)


# --- Gluon: products, a tile a program ---------------------------------------------------------


@gluon.jit
def wgmma_matmul(a_desc, b_desc, c_desc, STAGES: gl.constexpr, GROUP: gl.constexpr):
    """A product through TMA descriptors that are made on the host."""
    _multiply_tile(a_desc, b_desc, c_desc, STAGES, GROUP)


@gluon.jit
def wgmma_matmul_into(c_desc, a_desc, b_desc, STAGES: gl.constexpr, GROUP: gl.constexpr):
    """`wgmma_matmul` with its output before its inputs."""
    _multiply_tile(a_desc, b_desc, c_desc, STAGES, GROUP)


@gluon.jit
def _descriptor(pointer, rows, columns, BLOCK_ROWS: gl.constexpr, BLOCK_COLUMNS: gl.constexpr):
    """A descriptor of a row-major matrix, made on the device."""
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for(
        [BLOCK_ROWS, BLOCK_COLUMNS], pointer.dtype.element_ty
    )
    return tma.make_tensor_descriptor(
        pointer, [rows, columns], [columns, 1], [BLOCK_ROWS, BLOCK_COLUMNS], layout
    )


@gluon.jit
def wgmma_matmul_with_own_descriptors(
    a_ptr,
    b_ptr,
    c_ptr,
    M,
    N,
    K,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr,
    GROUP: gl.constexpr,
):
    """`wgmma_matmul` of pointers: each program makes its descriptors."""
    _multiply_tile(
        _descriptor(a_ptr, M, K, BLOCK_M, BLOCK_K),
        _descriptor(b_ptr, K, N, BLOCK_K, BLOCK_N),
        _descriptor(c_ptr, M, N, BLOCK_M, BLOCK_N),
        STAGES,
        GROUP,
    )


@gluon.jit
def wgmma_matmul_without_tma(
    a_ptr,
    b_ptr,
    c_ptr,
    M,
    N,
    K,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr,
    GROUP: gl.constexpr,
):
    """A product whose tiles come through asynchronous copies; blocks divide the sizes."""
    WARPS: gl.constexpr = gl.num_warps()
    product: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, BLOCK_N, 16])
    # A thread copies 8 elements, 16 bytes, at once.
    a_layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // BLOCK_K, BLOCK_K // 8], [WARPS, 1], [1, 0])
    b_layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // BLOCK_N, BLOCK_N // 8], [WARPS, 1], [1, 0])
    dtype: gl.constexpr = a_ptr.dtype.element_ty
    a_tiles = gl.allocate_shared_memory(
        dtype,
        [STAGES, BLOCK_M, BLOCK_K],
        gl.NVMMASharedLayout.get_default_for([BLOCK_M, BLOCK_K], dtype),
    )
    b_tiles = gl.allocate_shared_memory(
        dtype,
        [STAGES, BLOCK_K, BLOCK_N],
        gl.NVMMASharedLayout.get_default_for([BLOCK_K, BLOCK_N], dtype),
    )
    row, column = _offsets_of_tile(gl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP)
    a_rows = row + gl.arange(0, BLOCK_M, gl.SliceLayout(1, a_layout))
    a_columns = gl.arange(0, BLOCK_K, gl.SliceLayout(0, a_layout))
    b_rows = gl.arange(0, BLOCK_K, gl.SliceLayout(1, b_layout))
    b_columns = column + gl.arange(0, BLOCK_N, gl.SliceLayout(0, b_layout))
    a_ptrs = a_ptr + a_rows[:, None] * K + a_columns[None, :]
    b_ptrs = b_ptr + b_rows[:, None] * N + b_columns[None, :]

    for early in gl.static_range(STAGES - 1):
        wanted = early * BLOCK_K < K
        _copy_async(a_tiles.index(early), a_ptrs + early * BLOCK_K, mask=wanted)
        _copy_async(b_tiles.index(early), b_ptrs + early * BLOCK_K * N, mask=wanted)
        async_copy.commit_group()
    acc = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, product)
    for step in range(gl.cdiv(K, BLOCK_K)):
        slot = step % STAGES
        # Each thread waits for its own copies and shows them to the tensor cores, then for all others.
        async_copy.wait_group(STAGES - 2)
        fence_async_shared()
        _synchronize()
        acc = warpgroup_mma(a_tiles.index(slot), b_tiles.index(slot), acc, is_async=True)
        acc = warpgroup_mma_wait(1, deps=[acc])
        _synchronize()
        ahead = (step + STAGES - 1) * BLOCK_K
        slot = (step + STAGES - 1) % STAGES
        _copy_async(a_tiles.index(slot), a_ptrs + ahead, mask=ahead < K)
        _copy_async(b_tiles.index(slot), b_ptrs + ahead * N, mask=ahead < K)
        async_copy.commit_group()
    acc = warpgroup_mma_wait(0, deps=[acc])
    c_rows = row + gl.arange(0, BLOCK_M, gl.SliceLayout(1, product))
    c_columns = column + gl.arange(0, BLOCK_N, gl.SliceLayout(0, product))
    gl.store(c_ptr + c_rows[:, None] * N + c_columns[None, :], acc.to(c_ptr.dtype.element_ty))


# --- Gluon: a persistent product, warps specialized --------------------------------------------


@gluon.jit
def _produce(a_desc, b_desc, c_desc, a_tiles, b_tiles, loaded, free, GROUP: gl.constexpr):
    """One warp: starts the loads of all tiles, each as soon as its slot is free."""
    BLOCK_M: gl.constexpr = c_desc.block_shape[0]
    BLOCK_N: gl.constexpr = c_desc.block_shape[1]
    BLOCK_K: gl.constexpr = a_desc.block_shape[1]
    STAGES: gl.constexpr = a_tiles.shape[0]
    M, N, K = c_desc.shape[0], c_desc.shape[1], a_desc.shape[1]
    step = 0
    for tile in range(gl.program_id(0), gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N), gl.num_programs(0)):
        row, column = _offsets_of_tile(tile, M, N, BLOCK_M, BLOCK_N, GROUP)
        for k in range(0, K, BLOCK_K):
            slot = step % STAGES
            # In the first round this is the phase before the first: all slots are free.
            mbarrier.wait(free.index(slot), step // STAGES & 1 ^ 1)
            _load_tiles(
                a_desc,
                b_desc,
                row,
                column,
                k,
                a_tiles.index(slot),
                b_tiles.index(slot),
                loaded.index(slot),
                True,
            )
            step += 1


@gluon.jit
def _consume(a_desc, c_desc, a_tiles, b_tiles, loaded, free, c_tile, GROUP: gl.constexpr):
    """All other warps: multiply what was loaded, and store."""
    BLOCK_M: gl.constexpr = c_desc.block_shape[0]
    BLOCK_N: gl.constexpr = c_desc.block_shape[1]
    BLOCK_K: gl.constexpr = a_desc.block_shape[1]
    STAGES: gl.constexpr = a_tiles.shape[0]
    WARPS: gl.constexpr = gl.num_warps()
    product: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, BLOCK_N, 16])
    M, N, K = c_desc.shape[0], c_desc.shape[1], a_desc.shape[1]
    step = 0
    for tile in range(gl.program_id(0), gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N), gl.num_programs(0)):
        row, column = _offsets_of_tile(tile, M, N, BLOCK_M, BLOCK_N, GROUP)
        acc = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, product)
        for k in range(0, K, BLOCK_K):
            slot = step % STAGES
            mbarrier.wait(loaded.index(slot), step // STAGES & 1)
            acc = warpgroup_mma(a_tiles.index(slot), b_tiles.index(slot), acc, is_async=True)
            # The product before this one is done in all warps: its slot is free.
            acc = warpgroup_mma_wait(1, deps=[acc])
            _synchronize()
            mbarrier.arrive(free.index((step + STAGES - 1) % STAGES), pred=k > 0)
            step += 1
        acc = warpgroup_mma_wait(0, deps=[acc])
        tma.store_wait(0)  # of the tile before
        _synchronize()
        mbarrier.arrive(free.index((step + STAGES - 1) % STAGES))
        _store_tile(c_desc, row, column, acc, c_tile)
    tma.store_wait(0)


@gluon.jit
def _multiply_persistently(a_desc, b_desc, c_desc, STAGES: gl.constexpr, GROUP: gl.constexpr):
    BLOCK_M: gl.constexpr = c_desc.block_shape[0]
    BLOCK_N: gl.constexpr = c_desc.block_shape[1]
    BLOCK_K: gl.constexpr = a_desc.block_shape[1]
    a_tiles = gl.allocate_shared_memory(a_desc.dtype, [STAGES, BLOCK_M, BLOCK_K], a_desc.layout)
    b_tiles = gl.allocate_shared_memory(b_desc.dtype, [STAGES, BLOCK_K, BLOCK_N], b_desc.layout)
    c_tile = gl.allocate_shared_memory(c_desc.dtype, [BLOCK_M, BLOCK_N], c_desc.layout)
    loaded = _barriers(STAGES)
    free = _barriers(STAGES)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_consume, (a_desc, c_desc, a_tiles, b_tiles, loaded, free, c_tile, GROUP)),
            (_produce, (a_desc, b_desc, c_desc, a_tiles, b_tiles, loaded, free, GROUP)),
        ],
        [1],
        [24],
    )


@gluon.jit
def warp_specialized_matmul(a_desc, b_desc, c_desc, STAGES: gl.constexpr, GROUP: gl.constexpr):
    """A persistent product: one warp more than `num_warps` loads what the others multiply."""
    _multiply_persistently(a_desc, b_desc, c_desc, STAGES, GROUP)


@gluon.jit
def warp_specialized_matmul_with_own_descriptors(
    a_ptr,
    b_ptr,
    c_ptr,
    M,
    N,
    K,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr,
    GROUP: gl.constexpr,
):
    """`warp_specialized_matmul` of pointers: each program makes its descriptors."""
    _multiply_persistently(
        _descriptor(a_ptr, M, K, BLOCK_M, BLOCK_K),
        _descriptor(b_ptr, K, N, BLOCK_K, BLOCK_N),
        _descriptor(c_ptr, M, N, BLOCK_M, BLOCK_N),
        STAGES,
        GROUP,
    )


# --- Gluon: barriers without TMA ---------------------------------------------------------------


@gluon.jit
def transpose_with_mbarrier(x_ptr, out_ptr, ROWS: gl.constexpr, COLUMNS: gl.constexpr):
    """Transposes a matrix in one program; threads wait for each other's asynchronous copies at a barrier."""
    WARPS: gl.constexpr = gl.num_warps()
    copied: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [WARPS, 1], [1, 0])
    stored: gl.constexpr = gl.BlockedLayout([4, 1], [8, 4], [1, WARPS], [0, 1])
    tile = gl.allocate_shared_memory(
        x_ptr.dtype.element_ty, [ROWS, COLUMNS], gl.SwizzledSharedLayout(4, 1, 8, [1, 0])
    )
    done = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(done, count=32 * WARPS)
    _synchronize()
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, copied))
    columns = gl.arange(0, COLUMNS, gl.SliceLayout(0, copied))
    _copy_async(tile, x_ptr + rows[:, None] * COLUMNS + columns[None, :])
    # Each thread arrives once, when its copies are there.
    async_copy.mbarrier_arrive(done, increment_count=False)
    mbarrier.wait(done, 0)
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, stored))
    columns = gl.arange(0, COLUMNS, gl.SliceLayout(0, stored))
    gl.store(out_ptr + columns[None, :] * ROWS + rows[:, None], tile.load(stored))
    mbarrier.invalidate(done)

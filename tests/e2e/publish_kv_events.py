"""Publishes what vLLM's own block pool stores and evicts, without an engine. Run by the engine's Python, not by pytest.

Orders come by standard input, a line for each: `run FIRST COUNT [SALT]` reads a prompt of so many token ids from FIRST
on, `reset` clears the cache. Each is answered by a line.
"""

from __future__ import annotations

import sys
import time


def main(events: str, replay: str, blocks: int, block_tokens: int) -> None:
    from vllm.distributed.kv_events import (  # type: ignore[import-not-found]
        BlockStored,
        KVEventBatch,
        ZmqEventPublisher,
    )
    from vllm.sampling_params import SamplingParams  # type: ignore[import-not-found]
    from vllm.utils.hashing import sha256  # type: ignore[import-not-found]
    from vllm.v1.core.block_pool import BlockPool  # type: ignore[import-not-found]
    from vllm.v1.core.kv_cache_utils import (  # type: ignore[import-not-found]
        get_request_block_hasher,
        init_none_hash,
    )
    from vllm.v1.request import Request  # type: ignore[import-not-found]

    init_none_hash(sha256)
    hasher = get_request_block_hasher(block_tokens, sha256)
    publisher = ZmqEventPublisher(0, endpoint=f"tcp://*:{events}", replay_endpoint=f"tcp://*:{replay}")
    pool = BlockPool(blocks, True, block_tokens, enable_kv_cache_events=True)  # noqa: FBT003
    for line in sys.stdin:
        order, *rest = line.split()
        if order == "reset":
            pool.reset_prefix_cache()
        else:
            first, count = int(rest[0]), int(rest[1])
            ids, salt = list(range(first, first + count)), rest[2] if len(rest) > 2 else None
            sampling = SamplingParams(max_tokens=1)
            request = Request(str(first), ids, sampling, None, cache_salt=salt, block_hasher=hasher)
            taken = pool.get_new_blocks(-(-count // block_tokens))
            pool.cache_full_blocks(request, taken, 0, count // block_tokens, block_tokens, 0)
            pool.free_blocks(reversed(taken))  # as vLLM does: the end of a prompt is evicted first
        found = pool.take_events()
        for event in found:
            if isinstance(event, BlockStored):  # its scheduler adds this
                event.kv_cache_spec_kind = "full_attention"
        publisher.publish(KVEventBatch(ts=time.time(), events=found))
        print("done", flush=True)
    publisher.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))

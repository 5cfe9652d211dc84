"""The rim: vLLM's hooks, and what of vLLM's objects they need. Each hook hands plain values to legs.py (in the scheduler's process) or
worker.py (in a rank's), which decide and know nothing of vLLM.
"""

import dataclasses
import os
import sys
import time

import torch
import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)
from vllm.distributed.parallel_state import get_tp_group
from vllm.logger import init_logger
from vllm.v1.metrics.cache_hit_source import CacheHitSource
from vllm.v1.request import RequestStatus

from . import find, layout, settings
from .legs import Legs
from .library import DECODE, PREFILL, Library, Rank, Scheduler
from .metrics import PlaneMetrics, PlaneStats, Snapshots, snapshot
from .passing import Handshake, Orders, Reports
from .worker import Worker

logger = init_logger("vllm.pdrouter")

KVConnectorMetadata.register(Orders)
KVConnectorWorkerMetadata.register(Reports)
KVConnectorHandshakeMetadata.register(Handshake)

_WHOLE = (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED)


class PdrouterConnector(KVConnectorBase_V1, SupportsHMA):
    """pdrouter's KV plane in vLLM."""

    _cache_hit_source = CacheHitSource.P2P

    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config, role, kv_cache_config)
        transfer = vllm_config.kv_transfer_config
        self._settings = s = settings.Settings.parse(transfer.kv_connector_extra_config)
        if problem := settings.version_problem(vllm.__version__, s.allow_untested_vllm):
            raise RuntimeError(problem)
        if settings.untested(vllm.__version__):
            logger.warning("pdrouter_vllm was not tested with vLLM %s", vllm.__version__)
        if reasons := settings.unsupported(facts_of(vllm_config)):
            raise RuntimeError("pdrouter_vllm does not support:\n  " + "\n  ".join(reasons))
        self._groups = groups_of(kv_cache_config)
        self._role_name = settings.ROLES[transfer.kv_role]
        self._size = {"pp": 1, "tp": vllm_config.parallel_config.tensor_parallel_size}
        self._legs = self._worker = self._plane = self._snapshots = None
        if role == KVConnectorRole.SCHEDULER:
            transfer.kv_load_failure_policy = s.on_kv_failure  # the scheduler reads it behind this
            legs = ({PREFILL} if transfer.is_kv_producer else set()) | ({DECODE} if transfer.is_kv_consumer else set())
            self._plane = Scheduler(Library.load(s.library or None), s.scheduler(self._role_name, self._size))
            keep = layout.tokens_kept(self._groups)
            rests = vllm_config.parallel_config.distributed_executor_backend == "uni"
            self._legs = Legs(self._plane, legs, self._groups[0].block_tokens, len(self._groups), logger, keep, rests)
            self._snapshots = Snapshots(lambda: snapshot(self._legs))

    # Of the class.

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config):
        return "LBHNC"  # heads first in a block: a rank's share of the heads is in one piece for any number of ranks

    @classmethod
    def build_kv_connector_stats(cls, data=None):
        return PlaneStats(data=data or {})

    @classmethod
    def build_prom_metrics(cls, vllm_config, metric_types, labelnames, per_engine_labelvalues):
        return PlaneMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    # Scheduler.

    def set_xfer_handshake_metadata_pp_aware(self, metadata):
        self._legs.heard([h.report for _, h in sorted(metadata.items())])

    def get_loaded_kv_cache_group_ids(self, request):
        return tuple(range(len(self._groups)))  # none of the blocks may be zeroed behind an early write

    def on_new_request(self, request):
        unfit = ""
        if request.prompt_token_ids is None or request.prompt_embeds is not None:
            unfit = "the prompt has no token ids"
        elif request.pooling_params is not None:
            unfit = "it is pooled"
        elif request.resumable:
            unfit = "its prompt is not whole yet"
        self._legs.arrived(request.request_id, request.kv_transfer_params, request.prompt_token_ids, unfit, request.abort_immediately)

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        n = self._legs.matched(request.request_id, num_computed_tokens)
        return n, n > 0

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        self._legs.allocated(request.request_id, blocks.get_block_ids(), num_external_tokens)

    def build_connector_meta(self, scheduler_output):
        return self._legs.step(scheduler_output.total_num_scheduled_tokens > 0)

    def update_connector_output(self, connector_output):
        meta = connector_output.kv_connector_worker_meta
        received, sent = self._legs.heard(meta.of_ranks, meta.broken) if meta is not None else self._legs.heard(())
        # vLLM counts ranks by itself; these are ready on all of them already, so they are handed over here, in the step that says so.
        connector_output.finished_recving = received | (connector_output.finished_recving or set())
        connector_output.finished_sending = sent | (connector_output.finished_sending or set())

    def request_finished(self, request, block_ids):
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(self, request, block_ids):
        return self._legs.finished(request.request_id, request.status in _WHOLE, request.num_computed_tokens, block_ids)

    def has_pending_push_work(self):
        return self._legs.pending()

    # Worker.

    def register_kv_caches(self, kv_caches):
        s, config = self._settings, self._vllm_config
        if s.transport != "tcp" and not s.nixl_library:
            s = dataclasses.replace(s, nixl_library=find.nixl(os.environ, sys.path))
        tp = get_tp_group()
        first = next(iter(kv_caches.values()))
        memory = {"cpu": "dram", "cuda": "vram"}.get(first.device.type)
        if memory is None:
            raise RuntimeError(f"pdrouter_vllm does not support KV caches on {first.device.type}")
        cache, regions = layout.describe(
            {name: layer_of(name, tensor) for name, tensor in kv_caches.items()},
            self._groups,
            config.model_config.get_total_num_kv_heads(),
            tp.world_size,
            str(first.dtype).removeprefix("torch."),
            memory,
        )
        generation = tp.broadcast_object(time.time_ns() if tp.rank_in_group == 0 else None, src=0)
        rank = {"pp": 0, "tp": tp.rank_in_group}
        compatible = s.compatibility or settings.compatibility(compatibility_of(config))
        self._plane = Rank(Library.load(s.library or None), s.rank(self._role_name, generation, rank, self._size, compatible, cache))
        wait = visible(first.device) if self._role_name != "prefill" else None
        self._worker = Worker(self._plane, logger, lambda ranges: clear(kv_caches.values(), ranges), visible=wait)
        if self._worker.open(regions, s.start_timeout):
            over = self._plane.status()["transport"]
            logger.info("pdrouter: %s rank %d is published as generation %d: KV in %s, over %s", s.engine, tp.rank_in_group, generation, memory, over)
        else:
            logger.warning("pdrouter: no answer of the gateway %s in %.0f s; requests are served alone until it answers", s.gateway, s.start_timeout)

    def get_handshake_metadata(self):
        return self._worker.handshake() if self._worker else None

    def start_load_kv(self, forward_context, **kwargs):
        if self.has_connector_metadata():
            self._worker.begin(self._get_connector_metadata())

    def wait_for_layer_load(self, layer_name):
        pass

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs):
        pass

    def wait_for_save(self):
        pass

    def get_transfer_results(self, finished_req_ids):
        received, failed = self._worker.results()
        return KVConnectorTransferResults(finished_recving=received, failed_recving=failed)

    def get_block_ids_with_load_errors(self):
        return self._worker.failed_blocks()

    def build_connector_worker_meta(self):
        return self._worker.reports()

    # Both.

    def get_kv_connector_stats(self):
        return self._snapshots.stats() if self._snapshots else None  # a rank has none

    def shutdown(self):
        if self._plane:
            self._plane.close()


def facts_of(config):
    """What of vLLM's configuration settings.unsupported looks at."""
    p, m = config.parallel_config, config.model_config
    return settings.Facts(
        kv_role=config.kv_transfer_config.kv_role,
        pp=p.pipeline_parallel_size,
        dp=p.data_parallel_size,
        dcp=p.decode_context_parallel_size,
        pcp=p.prefill_context_parallel_size,
        speculative=config.speculative_config is not None,
        sleep=m.enable_sleep_mode,
        encoder_decoder=m.is_encoder_decoder,
        pooling=m.runner_type == "pooling",
    )


def groups_of(kv_cache_config):
    """vLLM's cache groups as plain values. Raises layout.Unsupported."""
    out = []
    for g in kv_cache_config.kv_cache_groups:
        spec = g.kv_cache_spec
        if not g.enable_kv_transfer or g.host_resident:
            raise layout.Unsupported("a cache group that vLLM does not hand over, or keeps in host memory")
        kind = type(spec).__name__
        if kind not in layout.KINDS:
            raise layout.Unsupported(f"a cache group of kind {kind}; the plane moves {', '.join(sorted(layout.KINDS))}")
        out.append(
            layout.Group(
                kind=kind,
                layers=tuple(g.layer_names),
                block_tokens=spec.block_size,
                page=spec.page_size_bytes,
                heads=spec.num_kv_heads,
                window=spec.sliding_window if kind == "SlidingWindowSpec" else 0,
                quantized=spec.kv_quant_mode.name != "NONE",
                draft=g.is_eagle_group,
            )
        )
    if not out:
        raise layout.Unsupported("no KV cache at all")
    return tuple(out)


def layer_of(name, tensor):
    device = tensor.get_device() if tensor.device.type == "cuda" else 0
    return layout.Layer(name, tuple(tensor.shape), tuple(tensor.stride()), tensor.element_size(), tensor.data_ptr(), device)


def compatibility_of(config):
    """What the KV of two engines depends on, but for their layouts, which their records have."""
    m, hf = config.model_config, config.model_config.hf_text_config.to_dict()
    return {
        "vllm": vllm.__version__,
        "model": m.model,
        "revision": m.revision,
        "dtype": m.dtype,
        "quantization": m.quantization,
        "cache_dtype": config.cache_config.cache_dtype,
        "hf": {k: v for k, v in hf.items() if k not in ("_name_or_path", "transformers_version")},
    }


def visible(device):
    """What waits until a GPU sees what others have written into its memory, None for the host's memory. It waits for what the device
    does, too, so a step in which blocks have come is not begun ahead of the one before."""
    return (lambda: torch.cuda.synchronize(device)) if device.type == "cuda" else None


def clear(tensors, ranges):
    """Overwrites stretches of the tensors' memory with zeros."""
    for address, length in ranges:
        for t in tensors:
            storage = t.untyped_storage()
            at = address - storage.data_ptr()
            if 0 <= at and at + length <= storage.nbytes():
                torch.empty(0, dtype=torch.uint8, device=t.device).set_(storage)[at : at + length].zero_()
                break
        else:
            raise RuntimeError("pdrouter: memory to be cleared is none of the KV caches'")

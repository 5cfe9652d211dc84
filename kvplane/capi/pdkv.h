/*
 * libpdkv: pdrouter's KV plane for engines that are not written in Go.
 *
 * Who opens what. An engine is one scheduler and PP x TP ranks, in one process or in several.
 *   - Each rank opens a handle of kind "rank" in the process that holds its KV memory. It owns one agent: it registers
 *     memory, makes the agent's record, publishes it at the gateway (and renews it), keeps a copy of its peers' records,
 *     and moves bytes. It carries out orders and says how they went.
 *   - The scheduler opens one handle of kind "scheduler". It has no memory and no agent. It admits legs by their tickets,
 *     turns pdkv_queue, pdkv_expect, pdkv_offer and pdkv_cancel into orders, brings together what all ranks report
 *     (released when all are ready, failed when any is, blocks united), and serves the engine's control routes
 *     (GET /kvplane/v1/events, POST /kvplane/v1/transfers/{id}/cancel), which the gateway opens: nothing is sent to it.
 *   - Between the two the caller carries bytes by a way of its own, in order and without loss (vLLM: connector metadata
 *     one way, worker metadata the other):
 *       scheduler: pdkv_orders  ->  every rank: pdkv_do        once per step, the same bytes to all ranks
 *       rank:      pdkv_collect ->  scheduler:  pdkv_hear      once per step and rank
 *     A step with nothing to say carries nothing: both calls then give 0 bytes.
 *   - The first pdkv_collect after PDKV_PUBLISHED carries the generation. Hand it to the scheduler before the first request
 *     (vLLM: get_handshake_metadata), or configure the scheduler's generation. Until then legs are refused with PDKV_EARLY.
 *
 * A handle is a number. Handles are never used twice; a closed or invented one is PDKV_EHANDLE.
 *
 * Threads. Every function may be called from any thread at any time, also with the same handle, and holds no lock of the
 * caller's; in Python call it through ctypes.CDLL, which lets go of the interpreter's lock. There are no callbacks.
 *
 * Waiting. No function waits for the network, a peer, the gateway or a device, except pdkv_close. What takes time goes on
 * behind the call; its result is polled, and pdkv_fd tells when.
 *
 * Ownership. Whatever is passed in is copied before the call returns, but for registered memory: it must stay mapped, and
 * where it is, until pdkv_close has returned. What comes out is written into the caller's buffers.
 *
 * Errors. 0 or more is success, below 0 one of PDKV_E*. The text of the last error of the calling thread is had with
 * pdkv_error. All texts that come out are UTF-8. A result whose buffer is too small changes nothing: *len says how many bytes it needs.
 *
 * Processes. The library holds the Go runtime, which starts in the process that loads it and does not survive a fork:
 * in a child every function returns PDKV_EFORKED (pdkv_abi, pdkv_version and pdkv_error work). Load it after the fork, or
 * spawn. It installs no handler for signals that others use: SIGINT, SIGTERM, SIGHUP and SIGCHLD stay the caller's. The Go
 * runtime takes SIGSEGV, SIGBUS, SIGFPE, SIGURG and, if nobody has it, SIGPIPE; faults that are not its own go on to the
 * handler that was there before. Handlers installed later should have SA_ONSTACK, as Python's do.
 * After the last pdkv_close no goroutine, descriptor or thread works for the library; idle threads of the Go runtime and its
 * poller's descriptors stay until the process ends. It cannot be unloaded: dlclose does nothing.
 *
 * Versions. PDKV_ABI changes when a caller that was compiled or written for an older header would not work any more;
 * pdkv_open refuses another one. PDKV_VERSION is the library's, by the rules of semantic versioning.
 */
#ifndef PDKV_H
#define PDKV_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PDKV_ABI 2
#define PDKV_VERSION "2.0.0"

typedef int64_t pdkv_handle; /* above 0; 0 is none */

/* Errors. */
#define PDKV_EARGUMENT (-1) /* a pointer, length or value that makes no sense; nothing was done */
#define PDKV_EHANDLE   (-2) /* not an open handle, or of the other kind */
#define PDKV_ESTATE    (-3) /* not now: memory after pdkv_publish, orders before it, a transfer that has failed already */
#define PDKV_EROOM     (-4) /* the buffer is too small; nothing was taken */
#define PDKV_EFORKED   (-5) /* this process was forked from the one that loaded the library */
#define PDKV_ECONFIG   (-6) /* the configuration is refused; every mistake is in the text, with its line or key */
#define PDKV_EABI      (-7) /* the caller was made for another PDKV_ABI */
#define PDKV_EFULL     (-8) /* too many open handles, transfers or orders */
#define PDKV_ETICKET   (-9) /* the leg's ticket is not accepted; answer 403, code "ticket", and begin nothing */
#define PDKV_EARLY    (-10) /* as PDKV_ETICKET: no rank was heard yet, so the generation is not known; hear the ranks and ask again */
#define PDKV_EKNOWN   (-11) /* the transfer id is in use */
#define PDKV_EINTERNAL (-12) /* a fault of the library; the handle should be closed */
#define PDKV_ESYSTEM  (-13) /* the operating system refuses: no descriptor, port or file */

/* pdkv_abi returns the library's PDKV_ABI. Compare it with the header's after loading, before anything else. */
uint32_t pdkv_abi(void);

/* pdkv_version returns the library's PDKV_VERSION, a text that stays. */
const char *pdkv_version(void);

/* pdkv_error copies the text of the calling thread's last error into buf, cut to cap bytes with a final 0. It returns the
 * length of the whole text without the 0; with cap 0 buf may be NULL. It never fails. */
size_t pdkv_error(char *buf, size_t cap);

/*
 * pdkv_open opens a handle. config is either the configuration itself, as JSON or YAML that begins with '{', or the path of
 * a YAML or JSON file; len is its length in bytes, without a final 0. abi is PDKV_ABI.
 *
 * Keys (times as "30s", "100ms"; whatever is not listed as required may be left out):
 *   kind            "rank" or "scheduler"; required
 *   engine          stable name, 1 to 128 letters, digits, '.', '_', '-'; required
 *   generation      number of this run, one for all parts of the engine, growing at every start. rank: default the time in
 *                   Unix nanoseconds, so it must be given where an engine has several ranks. scheduler: default that of
 *                   the first rank that is heard
 *   role            "prefill", "decode" or "both"; default both
 *   rank, size      {pp: 0, tp: 0} and {pp: 1, tp: 1}; size is how many there are along each axis
 *   times           {lease: 30s, beat: lease/6, queue: 5m, wait: 30s, deadline: 10s, net_delay: 1s, lost: 1s, lookup: 5s}; the same for all
 *                   parts of an engine and its peers
 *   log             {level: debug|info|warn|error, file: path}; default warn, to standard error
 * of kind rank:
 *   compatibility   digest of all that two engines must share (model, dtype, heads, ...); equal or not paired; required
 *   http            base URL of the engine's OpenAI routes, for its record
 *   control         {url: base URL of the engine's control routes, for its record}
 *   gateway         {url: agents' listener of the gateway, token_file: path, sign_key: path, record_keys: [paths], ttl: 30s};
 *                   url and token_file are required. record_keys: public keys of the gateways that sign records, files or
 *                   folders, read again every 10 s; none: the gateway is trusted
 *   transport       {name: auto|nixl|tcp, library: path of libnixl_capi.so, listen: "127.0.0.1:0", advertise: host,
 *                   path: auto|memory|socket}; auto is nixl where it is installed, else tcp; listen is where tcp's
 *                   connections and nixl's doorbell arrive
 *   cache           {block_tokens, physical: 1, heads: of the whole model (1 for MLA), head_bytes: of one head of one token of
 *                   one plane, order: hnd|nhd, dtype, replicated: false, memory: dram|vram,
 *                   groups: [{layers: [..], window: 0, heads: 0, head_bytes: 0}]}; no groups: one of full attention.
 *                   Quantities are those of docs/kvplane.md. block_tokens, heads, head_bytes and dtype are required
 *   serial_starts   true: a newer generation of a peer proves that the older one's process is gone
 * of kind scheduler:
 *   gateway         {record_keys: [paths]}: the same keys, which check tickets. None: legs are taken without a ticket
 *   control         {listen: "127.0.0.1:9105", keys: [public keys of tokens, files or folders], issuer: pdrouter}; none: no
 *                   control routes. Other than loopback needs keys
 *
 * On success *out is the handle; on an error nothing is left open.
 */
int32_t pdkv_open(uint32_t abi, const char *config, size_t len, pdkv_handle *out);

/* pdkv_close ends whatever the handle has: a rank's transfers fail with reason closing, its agent says goodbye, its record is
 * withdrawn. It waits until nothing of this process reads or writes the registered memory any more: about 1 s while something
 * is in progress, and up to 2 s for a gateway that does not answer. The descriptor of pdkv_fd is closed. A peer on the same host
 * may still write what it had begun: end the process, or wait for its death, before the memory is used for anything else.
 * A second call is PDKV_EHANDLE. */
int32_t pdkv_close(pdkv_handle h);

/* pdkv_fd returns a descriptor that is readable while pdkv_poll has something, or pdkv_collect (rank) or pdkv_orders
 * (scheduler). Only wait for it (poll, select, epoll): it is the library's to read, to write and to close. */
int32_t pdkv_fd(pdkv_handle h);

/* ---- rank ---- */

/* pdkv_region is the KV memory of one layer: where block b, plane k, local head i, token t lies is
 * base + b*block_stride + k*plane_stride + i*head_stride + t*token_stride. All in bytes, blocks being kernel blocks. */
typedef struct pdkv_region {
  int32_t layer;   /* index in the whole model, from 0 */
  int32_t planes;  /* 2: K and V are planes of this region; 1: there is one plane (apart, joint in a row, or MLA) */
  uint64_t base;   /* address of block 0, in host memory or on the device */
  uint64_t length; /* bytes from base */
  uint64_t blocks;
  uint64_t block_stride, plane_stride, head_stride, token_stride;
  int32_t device; /* cache.memory vram: number of the GPU; else 0 */
  int32_t reserved; /* 0 */
} pdkv_region; /* 72 bytes */

/* pdkv_register adds n regions, 1 to 4096 in all. Before pdkv_publish only. K and V apart are two regions of the same layer, K
 * first. Regions may overlap (several layers in one tensor). */
int32_t pdkv_register(pdkv_handle h, const pdkv_region *regions, size_t n);

/* pdkv_publish opens the agent over the registered memory (NIXL takes half a second) and has its record published in the background: that
 * ends in PDKV_PUBLISHED, or in PDKV_BROKEN. Once only. pdkv_do works when it has returned 0. If the agent cannot be opened it is
 * PDKV_ESYSTEM: close the rank. */
int32_t pdkv_publish(pdkv_handle h);

/* pdkv_do carries out the orders of one step, as pdkv_orders gave them. len 0 does nothing. */
int32_t pdkv_do(pdkv_handle h, const uint8_t *orders, size_t len);

/* pdkv_collect writes what the rank has to say since the last time into buf and its length into *len, 0 for nothing. It must
 * reach the scheduler: nothing is said twice. Blocks that are to be cleared before decode (block sizes that differ) have been
 * cleared where they are host memory; for device memory see PDKV_CLEAR, and poll before handing this on. */
int32_t pdkv_collect(pdkv_handle h, uint8_t *buf, size_t cap, size_t *len);

/* pdkv_gone says that the process of a peer engine's run is proven dead: reaped, or its host reset. Silence is no proof. On one
 * host the library sees deaths by itself. */
int32_t pdkv_gone(pdkv_handle h, const char *engine, uint64_t generation);

/* ---- scheduler ---- */

#define PDKV_PREFILL 1
#define PDKV_DECODE  2

/* pdkv_admit says whether this engine takes a leg (PDKV_PREFILL or PDKV_DECODE: which one it is asked for) of the transfer id,
 * 16 bytes, with the engine peer in its generation: all from the request's kv_transfer_params (transfer_id is their hexadecimal
 * form). ticket is its text there, NULL for none. A ticket serves once. What belongs to it is remembered for pdkv_expect or pdkv_offer.
 * PDKV_ETICKET and PDKV_EARLY: serve nothing of the plane for it. PDKV_EKNOWN: the id is in use. Every admitted leg must end
 * in pdkv_offer, pdkv_expect or pdkv_cancel. */
int32_t pdkv_admit(pdkv_handle h, int32_t leg, const uint8_t id[16], const char *peer, uint64_t generation, const char *ticket);

/* pdkv_blocks is one group's blocks of a request: ids[j] holds the tokens from first + j*block_tokens on. Logical ids. */
typedef struct pdkv_blocks {
  int64_t first; /* token where ids[0] begins; a multiple of the kernel block size */
  const int32_t *ids;
  uint64_t count;
} pdkv_blocks; /* 24 bytes */

typedef struct pdkv_transfer {
  uint8_t id[16];
  const char *peer;    /* the other engine's name, with a final 0 */
  uint64_t generation; /* of its run */
  int64_t from, to;    /* pdkv_expect: tokens [from, to) that decode needs and does not hold; from == to: nothing.
                          pdkv_offer: from 0, to the tokens that prefill has computed, from the start of the request */
  const pdkv_blocks *groups; /* as many as the cache has groups, in its order */
  uint64_t n_groups;
  const int32_t *prompt; /* token ids of the whole prompt, by which both sides see that they mean the same; NULL: not checked */
  uint64_t n_prompt;
  int64_t wait_ms; /* pdkv_expect: how long prefill may take; 0: times.wait */
} pdkv_transfer; /* 88 bytes */

/* pdkv_queue says that a decode leg waits for free blocks, so that prefill keeps what it has. Say it again every minute while that
 * is so. groups, prompt and from..to are not looked at. Ends in pdkv_expect, pdkv_cancel or PDKV_FAILED without blocks. */
int32_t pdkv_queue(pdkv_handle h, const pdkv_transfer *t);

/* pdkv_expect orders reserved blocks to be written. They are pinned until PDKV_RELEASED or PDKV_CLOSED: they must not be read, freed,
 * hashed or given away, whatever becomes of the request. Only blocks that nobody else reads. PDKV_EKNOWN: ordered before.
 * PDKV_ESTATE: the transfer has failed while it was queued, and PDKV_FAILED says so at the next pdkv_poll; nothing is registered. A
 * PDKV_FAILED polled after a successful pdkv_expect is always about the expectation. */
int32_t pdkv_expect(pdkv_handle h, const pdkv_transfer *t);

/* pdkv_offer hands over the finished blocks of a request, every one of them computed and visible in memory (on a GPU: after the
 * device's event). They are held until PDKV_FREED. */
int32_t pdkv_offer(pdkv_handle h, const pdkv_transfer *t);

/* pdkv_cancel gives a transfer up, at any time and on either side; why is for people, NULL for none. The peer is told, also where
 * nothing was ordered yet. What was expected still ends in PDKV_CLOSED, or PDKV_RELEASED if it was complete already, what was
 * offered in PDKV_FREED; what was neither has then ended. An id that is not known here has no effect. */
int32_t pdkv_cancel(pdkv_handle h, const uint8_t id[16], const char *why);

/* pdkv_orders writes what all ranks must be told since the last call into buf and its length into *len, 0 for nothing. Call it once
 * in each step and give the bytes to every rank. */
int32_t pdkv_orders(pdkv_handle h, uint8_t *buf, size_t cap, size_t *len);

/* pdkv_hear takes what one rank has collected. What it means is polled. len 0 does nothing. Reports of strangers, other
 * generations and repeats have no effect and are counted in pdkv_status. */
int32_t pdkv_hear(pdkv_handle h, const uint8_t *report, size_t len);

/* ---- both ---- */

/* Kinds of results. R: of a rank, S: of a scheduler. */
#define PDKV_PUBLISHED 1 /* R: the record is published; bytes is the generation */
#define PDKV_BROKEN    2 /* R: the rank serves no new legs; text says why. Go on with pdkv_do and pdkv_collect until no leg of the engine is left,
                            then close it. bytes above 0: a newer generation is known, and is this: another process has this name, or
                            the clock went back (then open again with bytes + 1) */
#define PDKV_CLEAR     3 /* R: device memory, in ranges, to be cleared before decode of this transfer */
/* 4 and 5 are not used */
#define PDKV_RELEASED  6 /* S: decode may start; every block is there on every rank. tokens: computed by prefill, 0 if nothing was needed */
#define PDKV_FAILED    7 /* S: the transfer has failed; its blocks must not be read. An expected one stays pinned until PDKV_CLOSED, an
                            offered one until PDKV_FREED; one that was only queued has ended with this. blocks: what is not there,
                            per group. The ranks are told already */
#define PDKV_CLOSED    8 /* S: of a failed one: nothing lands in its blocks any more, they may be freed */
#define PDKV_FREED     9 /* S: no rank reads the offered blocks any more, they may be freed. reason above 0: somebody went without */
#define PDKV_CANCELLED 10 /* S: the gateway has cancelled this leg: abort its request. The ranks are told already, and a leg for which nothing
                            was ordered has ended with this. An expectation or an offer that crosses it ends as any other */

/* pdkv_result is one result. Behind it lie, in this order: ranges x {uint64_t address, uint64_t length}; groups x uint32_t, how many
 * blocks each has; all these blocks, int32_t each, sorted within a group; text bytes of text, without a final 0. size spans all of it. */
typedef struct pdkv_result {
  uint32_t size;   /* bytes to the next result; a multiple of 8 */
  uint32_t kind;
  uint8_t id[16];  /* of the transfer; zeros if it is about none */
  uint32_t reason; /* 0 is none; else as named at the begin of text */
  int32_t pp, tp;  /* FAILED: the rank whose word came first; -1: not known, as when the deadline is over */
  int32_t k, n;    /* ranks that have come to their end, of how many */
  int32_t tokens;
  uint32_t ranges;
  uint32_t groups;
  uint64_t bytes; /* FREED: bytes written by all ranks */
  uint32_t text;  /* "lease_over: ...", for people and logs */
  uint32_t reserved;
} pdkv_result; /* 72 bytes */

/* pdkv_poll takes results into buf, as many as fit whole, and returns how many; *len is their bytes. buf must be aligned to 8.
 * PDKV_EROOM: not even the first fits, it needs *len. FAILED of a transfer always comes before its CLOSED. A result that the
 * caller takes is not given again. */
int32_t pdkv_poll(pdkv_handle h, void *buf, size_t cap, size_t *len);

/* pdkv_status writes a JSON object for people and metrics into buf: what the agent holds and has seen (blocks held, pinned and in
 * quarantine by peer, counts by reason), or what the scheduler does. Keys may be added. It may wait for the agent's owner, a few ms.
 * It may have grown when it is asked for again after PDKV_EROOM: ask until it fits. */
int32_t pdkv_status(pdkv_handle h, char *buf, size_t cap, size_t *len);

#ifdef __cplusplus
}
#endif

#endif

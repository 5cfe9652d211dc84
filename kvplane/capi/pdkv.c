//go:build cgo

/* What must work without the Go runtime, before anything reaches it: whether this process was forked, and the last error of
 * a thread. Every function of pdkv.h begins here. */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pdkv.h"
#include "_cgo_export.h"

_Static_assert(sizeof(pdkv_region) == 72, "pdkv_region");
_Static_assert(sizeof(pdkv_blocks) == 24, "pdkv_blocks");
_Static_assert(sizeof(pdkv_transfer) == 88, "pdkv_transfer");
_Static_assert(sizeof(pdkv_result) == 72, "pdkv_result");

enum { most_text = 4096, most_config = 1 << 20, most_name = 128, most_ticket = 4096, most_why = 1024 };

static pid_t home; /* the process that loaded the library */
static pthread_key_t texts; /* of each thread: its last error */
static char nowhere[most_text]; /* for a thread that there is no memory for */

/* Not __thread: what Go needs of it makes all of the library's part of a block that a process has little of. */
__attribute__((constructor)) static void loaded(void) {
  home = getpid();
  if (pthread_key_create(&texts, free) != 0) abort();
}

static char *last_text(void) {
  char *text = pthread_getspecific(texts);
  if (text != NULL) return text;
  text = calloc(1, most_text);
  if (text == NULL) return nowhere;
  if (pthread_setspecific(texts, text) != 0) {
    free(text);
    return nowhere;
  }
  return text;
}

static int32_t fail(int32_t code, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(last_text(), most_text, format, args);
  va_end(args);
  return code;
}

static int forked(void) { return getpid() != home; }

#define HERE(name)                                                                                                     \
  if (forked())                                                                                                        \
  return fail(PDKV_EFORKED, name ": this process was forked from %ld, which loaded the library", (long)home)

#define WANT(name, what)                                                                                               \
  if (!(what))                                                                                                         \
  return fail(PDKV_EARGUMENT, name ": want " #what)

/* text_of is the length of a text of at most `most` bytes, -1 for a longer one and for NULL. */
static int64_t text_of(const char *s, size_t most) {
  size_t n;
  if (s == NULL) return -1;
  n = strnlen(s, most + 1);
  return n > most ? -1 : (int64_t)n;
}

uint32_t pdkv_abi(void) { return PDKV_ABI; }

const char *pdkv_version(void) { return PDKV_VERSION; }

size_t pdkv_error(char *buf, size_t cap) {
  const char *last = last_text();
  size_t n = strlen(last);
  if (buf != NULL && cap > 0) {
    size_t k = n < cap ? n : cap - 1;
    memcpy(buf, last, k);
    buf[k] = 0;
  }
  return n;
}

int32_t pdkv_open(uint32_t abi, const char *config, size_t len, pdkv_handle *out) {
  HERE("pdkv_open");
  if (abi != PDKV_ABI) return fail(PDKV_EABI, "pdkv_open: the caller was made for ABI %u; this is %u", abi, PDKV_ABI);
  WANT("pdkv_open", config != NULL && out != NULL && len >= 1 && len <= most_config);
  return pdkvGoOpen((char *)config, len, out, last_text());
}

int32_t pdkv_close(pdkv_handle h) {
  HERE("pdkv_close");
  return pdkvGoClose(h, last_text());
}

int32_t pdkv_fd(pdkv_handle h) {
  HERE("pdkv_fd");
  return pdkvGoFD(h, last_text());
}

int32_t pdkv_register(pdkv_handle h, const pdkv_region *regions, size_t n) {
  HERE("pdkv_register");
  WANT("pdkv_register", regions != NULL && n >= 1 && n <= 4096);
  return pdkvGoRegister(h, (pdkv_region *)regions, n, last_text());
}

int32_t pdkv_publish(pdkv_handle h) {
  HERE("pdkv_publish");
  return pdkvGoPublish(h, last_text());
}

int32_t pdkv_do(pdkv_handle h, const uint8_t *orders, size_t len) {
  HERE("pdkv_do");
  WANT("pdkv_do", (orders != NULL || len == 0) && len <= INT32_MAX);
  return pdkvGoDo(h, (uint8_t *)orders, len, last_text());
}

int32_t pdkv_collect(pdkv_handle h, uint8_t *buf, size_t cap, size_t *len) {
  HERE("pdkv_collect");
  WANT("pdkv_collect", (buf != NULL || cap == 0) && len != NULL);
  return pdkvGoCollect(h, buf, cap, len, last_text());
}

int32_t pdkv_gone(pdkv_handle h, const char *engine, uint64_t generation) {
  int64_t n = text_of(engine, most_name);
  HERE("pdkv_gone");
  WANT("pdkv_gone", n >= 1 && generation > 0);
  return pdkvGoGone(h, (char *)engine, n, generation, last_text());
}

int32_t pdkv_admit(pdkv_handle h, int32_t leg, const uint8_t id[16], const char *peer, uint64_t generation, const char *ticket) {
  int64_t n = text_of(peer, most_name), t = ticket == NULL ? 0 : text_of(ticket, most_ticket);
  HERE("pdkv_admit");
  WANT("pdkv_admit", (leg == PDKV_PREFILL || leg == PDKV_DECODE) && id != NULL && n >= 1 && generation > 0);
  WANT("pdkv_admit", t >= 0);
  return pdkvGoAdmit(h, leg, (uint8_t *)id, (char *)peer, n, generation, (char *)ticket, t, last_text());
}

/* checked refuses what a struct cannot mean, before its pointers are followed. */
static int32_t checked(const char *name, const pdkv_transfer *t, int whole) {
  uint64_t i;
  if (t == NULL) return fail(PDKV_EARGUMENT, "%s: want a transfer", name);
  if (text_of(t->peer, most_name) < 1) return fail(PDKV_EARGUMENT, "%s: want a peer of 1 to %d bytes", name, most_name);
  if (!whole) return 0;
  if (t->groups == NULL || t->n_groups < 1 || t->n_groups > 64) return fail(PDKV_EARGUMENT, "%s: want 1 to 64 groups", name);
  if ((t->prompt == NULL) != (t->n_prompt == 0) || t->n_prompt > 1u << 30)
    return fail(PDKV_EARGUMENT, "%s: want a prompt of at most 2^30 tokens, or NULL and 0", name);
  for (i = 0; i < t->n_groups; i++) {
    const pdkv_blocks *g = &t->groups[i];
    if ((g->ids == NULL && g->count > 0) || g->count > 1u << 20)
      return fail(PDKV_EARGUMENT, "%s: group %d has %llu blocks; want at most 2^20, and where they are", name, (int)i,
                  (unsigned long long)g->count);
  }
  return 0;
}

#define ORDER(name, whole, call)                                                                                       \
  HERE(name);                                                                                                          \
  if (checked(name, t, whole) != 0) return PDKV_EARGUMENT;                                                             \
  return call(h, (pdkv_transfer *)t, last_text())

int32_t pdkv_queue(pdkv_handle h, const pdkv_transfer *t) { ORDER("pdkv_queue", 0, pdkvGoQueue); }
int32_t pdkv_expect(pdkv_handle h, const pdkv_transfer *t) { ORDER("pdkv_expect", 1, pdkvGoExpect); }
int32_t pdkv_offer(pdkv_handle h, const pdkv_transfer *t) { ORDER("pdkv_offer", 1, pdkvGoOffer); }

int32_t pdkv_cancel(pdkv_handle h, const uint8_t id[16], const char *why) {
  HERE("pdkv_cancel");
  WANT("pdkv_cancel", id != NULL);
  return pdkvGoCancel(h, (uint8_t *)id, (char *)why, why == NULL ? 0 : (int64_t)strnlen(why, most_why), last_text());
}

int32_t pdkv_orders(pdkv_handle h, uint8_t *buf, size_t cap, size_t *len) {
  HERE("pdkv_orders");
  WANT("pdkv_orders", (buf != NULL || cap == 0) && len != NULL);
  return pdkvGoOrders(h, buf, cap, len, last_text());
}

int32_t pdkv_hear(pdkv_handle h, const uint8_t *report, size_t len) {
  HERE("pdkv_hear");
  WANT("pdkv_hear", (report != NULL || len == 0) && len <= INT32_MAX);
  return pdkvGoHear(h, (uint8_t *)report, len, last_text());
}

int32_t pdkv_poll(pdkv_handle h, void *buf, size_t cap, size_t *len) {
  HERE("pdkv_poll");
  WANT("pdkv_poll", (buf != NULL || cap == 0) && len != NULL && (uintptr_t)buf % 8 == 0);
  return pdkvGoPoll(h, buf, cap, len, last_text());
}

int32_t pdkv_status(pdkv_handle h, char *buf, size_t cap, size_t *len) {
  HERE("pdkv_status");
  WANT("pdkv_status", (buf != NULL || cap == 0) && len != NULL);
  return pdkvGoStatus(h, buf, cap, len, last_text());
}

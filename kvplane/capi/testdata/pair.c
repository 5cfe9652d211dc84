/* A prefill and a decode engine of one rank each in one C program, driven through pdkv.h alone.
 * pair URL PREFILL_TOKEN_FILE DECODE_TOKEN_FILE, then GENERATION GENERATION ID TICKET TICKET for each of two transfers. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pdkv.h"

#define CHECK(what)                                                                                                    \
  do {                                                                                                                 \
    if (!(what)) die(__LINE__, #what);                                                                                 \
  } while (0)

static void die(int line, const char *what) {
  char text[4096];
  pdkv_error(text, sizeof text);
  fprintf(stderr, "pair.c:%d: %s\nlast error: %s\n", line, what, text);
  exit(1);
}

enum { layers = 2, heads = 2, head_bytes = 16, tokens = 4, blocks = 64 };
enum { block = heads * tokens * head_bytes, layer = blocks * block };

struct engine {
  const char *name;
  uint64_t generation;
  pdkv_handle scheduler, rank;
  unsigned char *memory;
  int kinds[16];        /* how often each kind was seen of any transfer */
  uint64_t written;
};

static pdkv_handle open_handle(const char *format, ...) {
  char config[4096];
  pdkv_handle h = 0;
  va_list args;
  va_start(args, format);
  int n = vsnprintf(config, sizeof config, format, args);
  va_end(args);
  CHECK(pdkv_open(PDKV_ABI, config, (size_t)n, &h) == 0 && h > 0);
  return h;
}

static void polled(struct engine *e, pdkv_handle h) {
  _Alignas(8) char buf[16384];
  size_t len = 0;
  int n = pdkv_poll(h, buf, sizeof buf, &len);
  CHECK(n >= 0);
  for (char *at = buf; n > 0; n--) {
    pdkv_result *r = (pdkv_result *)at;
    CHECK(r->kind != PDKV_BROKEN && r->kind < 16 && r->size % 8 == 0);
    e->kinds[r->kind]++;
    if (r->kind == PDKV_FREED) e->written += r->bytes;
    at += r->size;
    CHECK(at <= buf + len);
  }
}

static void step(struct engine *e) {
  uint8_t buf[65536];
  size_t len = 0;
  CHECK(pdkv_orders(e->scheduler, buf, sizeof buf, &len) == 0);
  CHECK(pdkv_do(e->rank, buf, len) == 0);
  CHECK(pdkv_collect(e->rank, buf, sizeof buf, &len) == 0);
  CHECK(pdkv_hear(e->scheduler, buf, len) == 0);
  polled(e, e->rank);
  polled(e, e->scheduler);
}

/* until steps both engines, whenever a descriptor says that there is something, until one has seen kind n times. */
static void until(struct engine *p, struct engine *d, struct engine *who, int kind, int n) {
  for (int waits = 0;; waits++) {
    struct pollfd fds[4] = {{pdkv_fd(p->scheduler), POLLIN, 0}, {pdkv_fd(p->rank), POLLIN, 0},
                            {pdkv_fd(d->scheduler), POLLIN, 0}, {pdkv_fd(d->rank), POLLIN, 0}};
    step(p);
    step(d);
    if (who->kinds[kind] >= n) return;
    CHECK(waits < 10000);
    int got = poll(fds, 4, 20000);
    CHECK(got > 0 || (got < 0 && errno == EINTR));
  }
}

static void start(struct engine *e, const char *role, const char *url, const char *token, const char *transport, const char *keys) {
  e->scheduler = open_handle("{kind: scheduler, engine: %s, role: %s, control: {listen: \"127.0.0.1:0\"}, gateway: {record_keys: [\"%s\"]}}",
                             e->name, role, keys);
  e->rank = open_handle("{kind: rank, engine: %s, role: %s, generation: %llu, compatibility: same, gateway: {url: \"%s\", token_file: \"%s\", record_keys: [\"%s\"]}, "
                        "transport: {name: %s}, times: {net_delay: 50ms}, "
                        "cache: {block_tokens: %d, heads: %d, head_bytes: %d, dtype: f32}}",
                        e->name, role, (unsigned long long)e->generation, url, token, keys, transport, tokens, heads, head_bytes);
  e->memory = aligned_alloc(4096, layers * layer);
  CHECK(e->memory != NULL);
  for (int i = 0; i < layers * layer; i++) e->memory[i] = (unsigned char)rand();
  pdkv_region regions[layers];
  memset(regions, 0, sizeof regions);
  for (int l = 0; l < layers; l++) {
    regions[l].layer = l;
    regions[l].planes = 1;
    regions[l].base = (uint64_t)(uintptr_t)(e->memory + l * layer);
    regions[l].length = layer;
    regions[l].blocks = blocks;
    regions[l].block_stride = regions[l].plane_stride = block;
    regions[l].head_stride = tokens * head_bytes;
    regions[l].token_stride = head_bytes;
  }
  CHECK(pdkv_publish(e->rank) == PDKV_ESTATE);
  CHECK(pdkv_register(e->rank, regions, layers) == 0);
  CHECK(pdkv_publish(e->rank) == 0);
  CHECK(pdkv_publish(e->rank) == PDKV_ESTATE);
}

static void end(struct engine *e) {
  CHECK(pdkv_close(e->scheduler) == 0);
  CHECK(pdkv_close(e->rank) == 0);
  CHECK(pdkv_close(e->rank) == PDKV_EHANDLE);
  free(e->memory);
}

static void parse(uint8_t id[16], const char *hex) {
  for (int i = 0; i < 16; i++) {
    unsigned b;
    CHECK(sscanf(hex + 2 * i, "%2x", &b) == 1);
    id[i] = (uint8_t)b;
  }
}

/* hand moves n blocks and compares, then cancels another transfer. */
static void hand(char **arg, const char *url, const char *ptoken, const char *dtoken, const char *transport, const char *keys) {
  enum { n = 40 };
  struct engine p = {.name = "prefill-0", .generation = strtoull(arg[0], NULL, 10)};
  struct engine d = {.name = "decode-0", .generation = strtoull(arg[1], NULL, 10)};
  start(&p, "prefill", url, ptoken, transport, keys);
  start(&d, "decode", url, dtoken, transport, keys);
  uint8_t id[16];
  parse(id, arg[2]);
  CHECK(pdkv_admit(p.scheduler, PDKV_PREFILL, id, d.name, d.generation, arg[3]) == PDKV_EARLY);
  until(&p, &d, &p, PDKV_PUBLISHED, 1);
  until(&p, &d, &d, PDKV_PUBLISHED, 1);
  step(&p); /* what a rank collects after that tells its scheduler the generation */
  step(&d);

  CHECK(pdkv_admit(p.scheduler, PDKV_DECODE, id, d.name, d.generation, arg[3]) == PDKV_ETICKET);
  CHECK(pdkv_admit(p.scheduler, PDKV_PREFILL, id, d.name, d.generation, NULL) == PDKV_ETICKET);
  CHECK(pdkv_admit(p.scheduler, PDKV_PREFILL, id, d.name, d.generation, arg[3]) == 0);
  CHECK(pdkv_admit(p.scheduler, PDKV_PREFILL, id, d.name, d.generation, arg[3]) == PDKV_EKNOWN);
  CHECK(pdkv_admit(d.scheduler, PDKV_DECODE, id, p.name, p.generation, arg[4]) == 0);
  int32_t from[n], to[n], prompt[n * tokens];
  for (int i = 0; i < n; i++) from[i] = blocks - 1 - i, to[i] = i;
  for (int i = 0; i < n * tokens; i++) prompt[i] = i;
  pdkv_blocks source = {0, from, n}, target = {0, to, n};
  pdkv_transfer offer = {.peer = d.name, .generation = d.generation, .to = n * tokens, .groups = &source, .n_groups = 1,
                         .prompt = prompt, .n_prompt = n * tokens};
  pdkv_transfer expect = offer;
  memcpy(offer.id, id, 16);
  memcpy(expect.id, id, 16);
  expect.peer = p.name, expect.generation = p.generation, expect.groups = &target, expect.wait_ms = 20000;
  CHECK(pdkv_queue(d.scheduler, &expect) == 0);
  CHECK(pdkv_expect(d.scheduler, &expect) == 0);
  CHECK(pdkv_expect(d.scheduler, &expect) == PDKV_EKNOWN);
  CHECK(pdkv_offer(p.scheduler, &offer) == 0);
  until(&p, &d, &d, PDKV_RELEASED, 1);
  until(&p, &d, &p, PDKV_FREED, 1);
  for (int l = 0; l < layers; l++)
    for (int i = 0; i < n; i++)
      CHECK(memcmp(p.memory + l * layer + from[i] * block, d.memory + l * layer + to[i] * block, block) == 0);
  CHECK(p.written == (uint64_t)layers * n * block);

  /* A transfer that decode gives up while it waits. */
  parse(id, arg[5]);
  memcpy(expect.id, id, 16);
  CHECK(pdkv_admit(d.scheduler, PDKV_DECODE, id, p.name, p.generation, arg[7]) == 0);
  CHECK(pdkv_expect(d.scheduler, &expect) == 0);
  step(&d);
  CHECK(pdkv_cancel(d.scheduler, id, "nobody reads it") == 0);
  until(&p, &d, &d, PDKV_CLOSED, 1);
  CHECK(d.kinds[PDKV_RELEASED] == 1);

  char json[65536];
  size_t len = 0;
  CHECK(pdkv_status(p.rank, json, 1, &len) == PDKV_EROOM && len > 100);
  CHECK(pdkv_status(p.rank, json, sizeof json, &len) == 0 && json[0] == '{');
  end(&d);
  end(&p);
}

static int count(const char *path) {
  int n = 0;
  DIR *dir = opendir(path);
  CHECK(dir != NULL);
  while (readdir(dir) != NULL) n++;
  closedir(dir);
  return n;
}

/* forked checks that a child is told so and does not hang. */
static void forked(void) {
  pdkv_handle h = open_handle("{kind: scheduler, engine: parent, log: {level: error}}");
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    char text[256];
    size_t len;
    uint8_t id[16] = {1};
    alarm(20);
    CHECK(pdkv_abi() == PDKV_ABI && strcmp(pdkv_version(), PDKV_VERSION) == 0);
    CHECK(pdkv_poll(h, NULL, 0, &len) == PDKV_EFORKED && pdkv_fd(h) == PDKV_EFORKED);
    CHECK(pdkv_cancel(h, id, NULL) == PDKV_EFORKED && pdkv_close(h) == PDKV_EFORKED);
    CHECK(pdkv_open(PDKV_ABI, "{}", 2, &h) == PDKV_EFORKED);
    CHECK(pdkv_error(text, sizeof text) > 0 && strstr(text, "forked") != NULL);
    _exit(0);
  }
  int how;
  CHECK(waitpid(child, &how, 0) == child && WIFEXITED(how) && WEXITSTATUS(how) == 0);
  size_t len;
  CHECK(pdkv_poll(h, NULL, 0, &len) == 0 && pdkv_close(h) == 0);
}

static volatile sig_atomic_t signals;
static void on_signal(int n) { (void)n, signals++; }

int main(int argc, char **argv) {
  CHECK(argc == 6 + 8 + 8);
  CHECK(pdkv_abi() == PDKV_ABI);
  struct sigaction act, now;
  memset(&act, 0, sizeof act);
  act.sa_handler = on_signal;
  act.sa_flags = SA_ONSTACK;
  int kinds[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGCHLD};
  for (int i = 0; i < 5; i++) CHECK(sigaction(kinds[i], &act, NULL) == 0);
  int fds = 0;
  for (int round = 0; round < 2; round++) {
    hand(argv + 6 + 8 * round, argv[1], argv[2], argv[3], argv[4], argv[5]);
    int left = count("/proc/self/fd");
    for (int i = 0; i < 500 && round > 0 && left > fds; i++) { /* a connection that was cut is closed by its reader */
      usleep(10000);
      left = count("/proc/self/fd");
    }
    if (round > 0 && strcmp(argv[4], "tcp") == 0 && left > fds) {
      fprintf(stderr, "%d descriptors after the first round, %d after the second\n", fds, left);
      return 1;
    }
    fds = left;
  }
  forked();
  signals = 0;
  for (int i = 0; i < 4; i++) {
    CHECK(sigaction(kinds[i], NULL, &now) == 0 && now.sa_handler == on_signal);
    CHECK(kill(getpid(), kinds[i]) == 0); /* there is another thread that may take it */
  }
  for (int i = 0; i < 200 && signals < 4; i++) usleep(50000);
  CHECK(signals == 4);
  puts("ok");
  return 0;
}

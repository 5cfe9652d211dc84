// A fake of libcuda.so.1 for machines without a GPU: the functions that package cuda calls, over host memory. It is no
// CUDA: it starts nothing, and its device memory is the host's. What it is strict about is what Go code gets wrong:
// no call before cuInit, a context current on the calling thread, no address outside a live allocation, nothing given
// back twice. Like a GPU it may finish a copy inside the device later: at the next synchronous call, or at
// cuCtxSynchronize. The functions named fake_* are for its tests.

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { DEVICES = 2, BLOCKS = 4096, LATER = 64, DEPTH = 16 };
enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, INVALID_DEVICE = 101, INVALID_CONTEXT = 201 };

struct block { uintptr_t at; size_t size; int device; };
struct copy { uintptr_t to, from; size_t size; int value; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int initialized, retained[DEVICES], contexts[DEVICES];
static struct block blocks[BLOCKS];
static struct copy later[LATER];
static int waiting;
static char failing[64];
static int failure, failing_after;
static __thread void *stack[DEPTH];
static __thread int depth;

// fail says whether the function was told to fail now.
static int fail(const char *name) {
	int r = OK;
	pthread_mutex_lock(&lock);
	if (strcmp(name, failing) == 0 && failing_after-- == 0) {
		failing[0] = 0;
		r = failure;
	}
	pthread_mutex_unlock(&lock);
	return r;
}

#define BEGIN(name) \
	do { \
		if (!initialized) return NOT_INITIALIZED; \
		int told = fail(name); \
		if (told != OK) return told; \
	} while (0)

// current returns the device whose context is current on this thread, -1 if there is none.
static int current(void) {
	if (depth == 0) return -1;
	for (int d = 0; d < DEVICES; d++)
		if (stack[depth - 1] == &contexts[d] && retained[d] > 0) return d;
	return -1;
}

// holds says whether the range lies in one live allocation of the device. The lock is held.
static int holds(int device, uintptr_t at, size_t size) {
	for (int i = 0; i < BLOCKS; i++)
		if (blocks[i].size > 0 && blocks[i].device == device && at >= blocks[i].at && at - blocks[i].at <= blocks[i].size &&
			size <= blocks[i].size - (at - blocks[i].at))
			return 1;
	return 0;
}

// finish does what was put off. The lock is held.
static void finish(void) {
	for (int i = 0; i < waiting; i++) {
		if (later[i].from != 0)
			memcpy((void *)later[i].to, (void *)later[i].from, later[i].size);
		else
			memset((void *)later[i].to, later[i].value, later[i].size);
	}
	waiting = 0;
}

static void put_off(struct copy c) {
	if (waiting == LATER) finish();
	later[waiting++] = c;
}

int cuInit(unsigned int flags) {
	int told = fail("cuInit");
	if (told != OK) return told;
	if (flags != 0) return INVALID_VALUE;
	initialized = 1;
	return OK;
}

int cuDriverGetVersion(int *version) {
	*version = 12080;
	return OK;
}

int cuGetErrorName(int error, const char **text) {
	switch (error) {
	case OK: *text = "CUDA_SUCCESS"; return OK;
	case INVALID_VALUE: *text = "CUDA_ERROR_INVALID_VALUE"; return OK;
	case OUT_OF_MEMORY: *text = "CUDA_ERROR_OUT_OF_MEMORY"; return OK;
	case NOT_INITIALIZED: *text = "CUDA_ERROR_NOT_INITIALIZED"; return OK;
	case INVALID_DEVICE: *text = "CUDA_ERROR_INVALID_DEVICE"; return OK;
	case INVALID_CONTEXT: *text = "CUDA_ERROR_INVALID_CONTEXT"; return OK;
	}
	*text = NULL;
	return INVALID_VALUE;
}

int cuGetErrorString(int error, const char **text) {
	if (cuGetErrorName(error, text) != OK) return INVALID_VALUE;
	*text = "said by the fake";
	return OK;
}

int cuDeviceGetCount(int *count) {
	BEGIN("cuDeviceGetCount");
	*count = DEVICES;
	return OK;
}

int cuDeviceGet(int *device, int ordinal) {
	BEGIN("cuDeviceGet");
	if (ordinal < 0 || ordinal >= DEVICES) return INVALID_DEVICE;
	*device = ordinal;
	return OK;
}

int cuDeviceGetName(char *name, int size, int device) {
	BEGIN("cuDeviceGetName");
	if (device < 0 || device >= DEVICES) return INVALID_DEVICE;
	strncpy(name, "fake GPU", size - 1);
	name[size - 1] = 0;
	return OK;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
	BEGIN("cuDevicePrimaryCtxRetain");
	if (device < 0 || device >= DEVICES) return INVALID_DEVICE;
	pthread_mutex_lock(&lock);
	retained[device]++;
	pthread_mutex_unlock(&lock);
	*context = &contexts[device];
	return OK;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
	BEGIN("cuDevicePrimaryCtxRelease_v2");
	if (device < 0 || device >= DEVICES) return INVALID_DEVICE;
	pthread_mutex_lock(&lock);
	int had = retained[device];
	if (had > 0) retained[device]--;
	pthread_mutex_unlock(&lock);
	return had > 0 ? OK : INVALID_CONTEXT;
}

int cuCtxPushCurrent_v2(void *context) {
	BEGIN("cuCtxPushCurrent_v2");
	if (context == NULL || depth == DEPTH) return INVALID_CONTEXT;
	stack[depth++] = context;
	return OK;
}

int cuCtxPopCurrent_v2(void **context) {
	BEGIN("cuCtxPopCurrent_v2");
	if (depth == 0) return INVALID_CONTEXT;
	*context = stack[--depth];
	return OK;
}

int cuCtxSynchronize(void) {
	BEGIN("cuCtxSynchronize");
	if (current() < 0) return INVALID_CONTEXT;
	pthread_mutex_lock(&lock);
	finish();
	pthread_mutex_unlock(&lock);
	return OK;
}

int cuMemAlloc_v2(uintptr_t *at, size_t size) {
	BEGIN("cuMemAlloc_v2");
	int device = current(), r = OUT_OF_MEMORY;
	if (device < 0) return INVALID_CONTEXT;
	if (size == 0) return INVALID_VALUE;
	pthread_mutex_lock(&lock);
	for (int i = 0; i < BLOCKS; i++) {
		void *p = NULL;
		if (blocks[i].size > 0) continue;
		if (posix_memalign(&p, 512, size) != 0) break;
		memset(p, 0xa5, size); // a GPU's memory is not zeroed
		blocks[i] = (struct block){(uintptr_t)p, size, device};
		*at = (uintptr_t)p;
		r = OK;
		break;
	}
	pthread_mutex_unlock(&lock);
	return r;
}

int cuMemFree_v2(uintptr_t at) {
	BEGIN("cuMemFree_v2");
	int r = INVALID_VALUE;
	if (current() < 0) return INVALID_CONTEXT;
	pthread_mutex_lock(&lock);
	finish();
	for (int i = 0; i < BLOCKS; i++) {
		if (blocks[i].size == 0 || blocks[i].at != at) continue;
		blocks[i].size = 0;
		free((void *)at);
		r = OK;
		break;
	}
	pthread_mutex_unlock(&lock);
	return r;
}

// now does one synchronous copy between the host and the device of the current context.
static int now(void *to, const void *from, size_t size, uintptr_t on_device) {
	int device = current(), r = INVALID_VALUE;
	if (device < 0) return INVALID_CONTEXT;
	pthread_mutex_lock(&lock);
	finish();
	if (holds(device, on_device, size)) {
		memcpy(to, from, size);
		r = OK;
	}
	pthread_mutex_unlock(&lock);
	return r;
}

int cuMemcpyHtoD_v2(uintptr_t to, const void *from, size_t size) {
	BEGIN("cuMemcpyHtoD_v2");
	return now((void *)to, from, size, to);
}

int cuMemcpyDtoH_v2(void *to, uintptr_t from, size_t size) {
	BEGIN("cuMemcpyDtoH_v2");
	return now(to, (void *)from, size, from);
}

int cuMemcpyDtoD_v2(uintptr_t to, uintptr_t from, size_t size) {
	BEGIN("cuMemcpyDtoD_v2");
	int device = current(), r = INVALID_VALUE;
	if (device < 0) return INVALID_CONTEXT;
	pthread_mutex_lock(&lock);
	if (holds(device, to, size) && holds(device, from, size)) {
		put_off((struct copy){to, from, size, 0});
		r = OK;
	}
	pthread_mutex_unlock(&lock);
	return r;
}

int cuMemsetD8_v2(uintptr_t to, unsigned char value, size_t size) {
	BEGIN("cuMemsetD8_v2");
	int device = current(), r = INVALID_VALUE;
	if (device < 0) return INVALID_CONTEXT;
	pthread_mutex_lock(&lock);
	if (holds(device, to, size)) {
		put_off((struct copy){to, 0, size, value});
		r = OK;
	}
	pthread_mutex_unlock(&lock);
	return r;
}

int cuPointerSetAttribute(const void *value, int attribute, uintptr_t at) {
	BEGIN("cuPointerSetAttribute");
	int device = current();
	if (device < 0) return INVALID_CONTEXT;
	pthread_mutex_lock(&lock);
	int known = holds(device, at, 1);
	pthread_mutex_unlock(&lock);
	return known && attribute == 6 && *(const unsigned int *)value == 1 ? OK : INVALID_VALUE;
}

// fake_fail lets the function fail once with the result, after it was called that many times.
void fake_fail(const char *name, int result, int after) {
	pthread_mutex_lock(&lock);
	strncpy(failing, name, sizeof failing - 1);
	failure = result;
	failing_after = after;
	pthread_mutex_unlock(&lock);
}

// fake_live counts the allocations that are not freed.
int fake_live(void) {
	int n = 0;
	pthread_mutex_lock(&lock);
	for (int i = 0; i < BLOCKS; i++) n += blocks[i].size > 0;
	pthread_mutex_unlock(&lock);
	return n;
}

// fake_retained counts how often the device's context is retained.
int fake_retained(int device) { return retained[device]; }

// fake_depth counts the contexts that the calling thread's stack holds.
int fake_depth(void) { return depth; }

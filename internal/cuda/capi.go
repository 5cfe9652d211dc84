package cuda

import "fmt"

// The values of CUDA's enumerations that are used here.
const (
	success = 0 // CUDA_SUCCESS of CUresult

	syncMemops = 6 // CU_POINTER_ATTRIBUTE_SYNC_MEMOPS of CUpointer_attribute
)

// Error is a result that is no success, and the function that returned it.
type Error struct {
	Op     string // the C function
	Result int    // CUresult
	Name   string // "CUDA_ERROR_OUT_OF_MEMORY"; "" if the driver does not know it
	Text   string // what the driver says of it
}

// Error implements error.
func (e *Error) Error() string {
	if e.Name == "" {
		return fmt.Sprintf("cuda: %s: result %d", e.Op, e.Result)
	}
	return fmt.Sprintf("cuda: %s: %s: %s", e.Op, e.Name, e.Text)
}

// function is the address of a C function and what to call it in errors.
type function struct {
	name string
	at   uintptr
}

// capi holds each function with its C prototype. CUresult and CUdevice are int, CUdeviceptr is 64 bits wide, CUcontext
// is a pointer. A name that ends in _v2 is what the C header makes of the prototype's name.
type capi struct {
	// CUresult cuInit(unsigned int Flags)
	init function
	// CUresult cuDriverGetVersion(int *driverVersion)
	driverGetVersion function
	// CUresult cuGetErrorName(CUresult error, const char **pStr)
	getErrorName function
	// CUresult cuGetErrorString(CUresult error, const char **pStr)
	getErrorString function

	// CUresult cuDeviceGetCount(int *count)
	deviceGetCount function
	// CUresult cuDeviceGet(CUdevice *device, int ordinal)
	deviceGet function
	// CUresult cuDeviceGetName(char *name, int len, CUdevice dev)
	deviceGetName function
	// CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
	devicePrimaryCtxRetain function
	// CUresult cuDevicePrimaryCtxRelease(CUdevice dev)
	devicePrimaryCtxRelease function
	// CUresult cuCtxPushCurrent(CUcontext ctx)
	ctxPushCurrent function
	// CUresult cuCtxPopCurrent(CUcontext *pctx)
	ctxPopCurrent function
	// CUresult cuCtxSynchronize(void)
	ctxSynchronize function

	// CUresult cuMemAlloc(CUdeviceptr *dptr, size_t bytesize)
	memAlloc function
	// CUresult cuMemFree(CUdeviceptr dptr)
	memFree function
	// CUresult cuMemcpyHtoD(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount)
	memcpyHtoD function
	// CUresult cuMemcpyDtoH(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount)
	memcpyDtoH function
	// CUresult cuMemcpyDtoD(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount)
	memcpyDtoD function
	// CUresult cuMemsetD8(CUdeviceptr dstDevice, unsigned char uc, size_t N)
	memsetD8 function
	// CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr ptr)
	pointerSetAttribute function
}

// functions lists every function under the name that the library exports.
func (c *capi) functions() []*function {
	named := func(f *function, name string) *function {
		f.name = name
		return f
	}
	return []*function{
		named(&c.init, "cuInit"),
		named(&c.driverGetVersion, "cuDriverGetVersion"),
		named(&c.getErrorName, "cuGetErrorName"),
		named(&c.getErrorString, "cuGetErrorString"),
		named(&c.deviceGetCount, "cuDeviceGetCount"),
		named(&c.deviceGet, "cuDeviceGet"),
		named(&c.deviceGetName, "cuDeviceGetName"),
		named(&c.devicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain"),
		named(&c.devicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2"),
		named(&c.ctxPushCurrent, "cuCtxPushCurrent_v2"),
		named(&c.ctxPopCurrent, "cuCtxPopCurrent_v2"),
		named(&c.ctxSynchronize, "cuCtxSynchronize"),
		named(&c.memAlloc, "cuMemAlloc_v2"),
		named(&c.memFree, "cuMemFree_v2"),
		named(&c.memcpyHtoD, "cuMemcpyHtoD_v2"),
		named(&c.memcpyDtoH, "cuMemcpyDtoH_v2"),
		named(&c.memcpyDtoD, "cuMemcpyDtoD_v2"),
		named(&c.memsetD8, "cuMemsetD8_v2"),
		named(&c.pointerSetAttribute, "cuPointerSetAttribute"),
	}
}

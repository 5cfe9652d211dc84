# Sourced by the run.sh of a bundle, with $here, the folder that nixl-pack.sh filled, and $work, a folder of its own to
# write in: has NIXL found there, with what the system lacks of it, and prints the machine, the driver and what is missing.
PDROUTER_NIXL_LIB=$here/nixl
capi=$(find "$here/nixl" -name libnixl_capi.so)
cuda=$(find "$here/nixl" -name 'libuct_cuda.so*')
LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}
export PDROUTER_NIXL_LIB LD_LIBRARY_PATH

# absent FILE prints the libraries that the loader does not find for a library.
absent() { ldd "$1" 2>/dev/null | sed -n 's/^[[:space:]]*\([^ ]*\) => not found.*/\1/p' | sort -u; }
also() { LD_LIBRARY_PATH=$LD_LIBRARY_PATH${LD_LIBRARY_PATH:+:}$1; }

for name in $(absent "$capi"); do
	if [ -e "$here/fallback/$name" ]; then
		mkdir -p "$work/lib"
		ln -s "$here/fallback/$name" "$work/lib/$name"
	fi
done
[ ! -d "$work/lib" ] || also "$work/lib"
case $(absent "$cuda") in *libcuda.so.1*)
	# The driver lies where the loader does not look; take the folder that has both of its libraries.
	for dir in /usr/local/nvidia/lib64 /usr/local/nvidia/lib /usr/lib/x86_64-linux-gnu /usr/lib/aarch64-linux-gnu /usr/lib64 \
		/usr/lib/wsl/lib /run/nvidia/driver/usr/lib/x86_64-linux-gnu /run/opengl-driver/lib; do
		if [ -e "$dir/libcuda.so.1" ]; then
			also "$dir"
			break
		fi
	done
	;;
esac

echo "machine:  $(uname -srm), $(nproc) processors, $(ldd --version 2>/dev/null | head -n 1)"
nvidia-smi --query-gpu=index,name,memory.total,driver_version --format=csv,noheader 2>/dev/null | sed 's/^/GPU:      /'
echo "driver:   $(ldd "$cuda" 2>/dev/null | sed -n 's/.*\(libcuda.so.1 => .*\) (0x.*/\1/p' | grep -v 'not found' || echo 'no libcuda.so.1')"
echo "NIXL:     $capi"
echo "missing:  $(absent "$capi" | tr '\n' ' ')for NIXL; $(absent "$cuda" | tr '\n' ' ')for UCX's CUDA"

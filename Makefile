# mkernel: `make help` lists the targets. Everything lands in build/.
# A .c file is found by where it lies; a new one needs no line here.

BUILD    ?= build
ifeq ($(origin CC),default)
CC       := gcc
endif
CLANG    ?= clang
CUDA_HOME ?= $(firstword $(wildcard /usr/local/cuda /usr/local/cuda-13* /usr/local/cuda-12*))
NVCC     ?= $(firstword $(wildcard $(CUDA_HOME)/bin/nvcc) $(shell command -v nvcc 2>/dev/null))
ifneq ($(NVCC),)
ifeq ($(shell command -v $(NVCC) 2>/dev/null),)
$(error NVCC=$(NVCC) is not there; `make CUDA_HOME= NVCC=` builds without CUDA)
endif
# Hopper takes CUDA 12; what distributions call nvidia-cuda-toolkit may be older.
NVCC_MAJOR := $(shell $(NVCC) --version 2>/dev/null | sed -n 's/.*release \([0-9]*\)\..*/\1/p')
ifeq ($(filter-out 1 2 3 4 5 6 7 8 9 10 11,$(NVCC_MAJOR)),)
CUDA_MISSING := no ($(NVCC) is of CUDA $(or $(NVCC_MAJOR),unknown), kernels take 12 or newer)
override NVCC :=
else
ifeq ($(CUDA_HOME),)
CUDA_HOME := $(abspath $(dir $(realpath $(shell command -v $(NVCC))))/..)
endif
ifeq ($(wildcard $(CUDA_HOME)/include/cuda_runtime.h /usr/include/cuda_runtime.h),) # the second: a distribution's package
$(error CUDA_HOME=$(CUDA_HOME) has no include/cuda_runtime.h, and nvcc is $(NVCC); `make CUDA_HOME= NVCC=` builds without CUDA)
endif
endif
endif
SAN      ?=
PREFIX   ?= /usr/local
LIBDIR   ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
VERSION  := $(shell sed -n 's/^.define MK_VERSION "\(.*\)"/\1/p' core/mkernel.h)
SONAME   := libmkernel.so.$(firstword $(subst ., ,$(VERSION)))
WARN     := -Wall -Wextra -Werror -Wno-unused-parameter -Wshadow -Wstrict-prototypes -Wmissing-prototypes
ifneq ($(shell $(CC) --version 2>/dev/null | grep -i clang),)
WARN     += -Wno-missing-field-initializers # {"A", OP_BF16, "M,K"} leaves the rest 0: gcc says nothing of it
endif
CFLAGS   ?= -O2 -g
Q        := $(if $(V),,@)
say       = $(if $(V),,@echo "  $(1)  $(2)")
ALL_CFLAGS := -std=gnu11 -D_GNU_SOURCE -fPIC -fvisibility=default -pthread -I. $(WARN) $(CFLAGS) $(SAN:%=-fsanitize=%)
LDFLAGS  += -pthread $(SAN:%=-fsanitize=%)

HASH := \#
# What this machine has. `have` compiles one line that needs the header (the library is tried where it is linked).
have = $(shell printf '$(HASH)include <$(1)>\n' | $(CC) $(3) -x c -fsyntax-only - 2>/dev/null && echo $(2))
HAVE_VERBS    := $(call have,infiniband/verbs.h,yes)
HAVE_EFA      := $(call have,infiniband/efadv.h,yes)
HAVE_OPENBLAS := $(call have,cblas.h,yes)
HAVE_SQLITE   := $(call have,sqlite3.h,yes)
HAVE_NCURSES  := $(call have,ncurses.h,yes)
HAVE_YAML     := $(call have,yaml.h,yes)
HAVE_CMOCKA   := $(shell printf '$(HASH)include <stdarg.h>\n$(HASH)include <stddef.h>\n$(HASH)include <setjmp.h>\n$(HASH)include <stdint.h>\n$(HASH)include <cmocka.h>\n' | $(CC) -x c -fsyntax-only - 2>/dev/null && echo yes)
HAVE_PLOTS    := $(shell { python3 -c 'import matplotlib' || /usr/bin/python3 -c 'import matplotlib'; } 2>/dev/null && echo yes)
HAVE_FUZZ     := $(shell printf 'int LLVMFuzzerTestOneInput(const char *d, long n) { return 0; }\n' | $(CLANG) -fsanitize=fuzzer -x c - -o /dev/null 2>/dev/null && echo yes)
HAVE_CUDA     := $(if $(NVCC),yes,)
HAVE_CXX      := $(shell printf '$(HASH)include <tuple>\n' | $(CXX) -std=c++17 -x c++ -fsyntax-only - 2>/dev/null && echo yes)
HAVE_GPU      := $(shell nvidia-smi -L 2>/dev/null | grep -q GPU && echo yes)

# What no build goes without. demo and test install it first, and make again.
MISSING := $(if $(HAVE_OPENBLAS),,libopenblas-dev) $(if $(HAVE_SQLITE),,libsqlite3-dev) $(if $(HAVE_NCURSES),,libncurses-dev)
ifneq ($(strip $(MISSING)),)
ifneq ($(filter-out demo test test-rxe help clean found format format-check format-version,$(or $(MAKECMDGOALS),all)),)
$(error missing: $(strip $(MISSING)) (Debian's names); `make demo` installs what is missing)
endif
endif

# The library: core, the executors and the tracer. softnic is a library of its own, as a device driver would be.
LIB_C   := $(wildcard core/*/*.c sim/*.c sim/*/*.c tracer/*.c tracer/*/*.c) $(filter-out backends/softnic/%,$(wildcard backends/*.c backends/*/*.c))
GPU_ONLY_C := $(if $(HAVE_CUDA),,experiments/bench/bench_cudnn.c experiments/bench/bench_gpu.c experiments/bench/bench_gpu_report.c experiments/bench/bench_other.c experiments/bench/bench_torch.c experiments/job/gpu_operands.c experiments/job/gpu_shape.c experiments/job/run_events.c experiments/tune/tune_gpu.c $(filter-out experiments/baselines/script.c,$(wildcard experiments/baselines/*.c)))
NIC_C   := $(wildcard backends/softnic/*.c)
CMD_C   := $(filter-out $(GPU_ONLY_C),$(wildcard experiments/*.c experiments/*/*.c))
TUI_C   := $(wildcard tui/*.c)
ifneq ($(HAVE_VERBS),)
ALL_CFLAGS += -DMK_HAVE_VERBS
else
LIB_C   := $(filter-out backends/verbs/%,$(LIB_C))
NIC_C   :=
CMD_C   := $(filter-out experiments/bench/bench_fabric%,$(CMD_C))
endif
# Sweeps as files. The static library, where there is one: the binary is copied to machines that lack the other.
ifneq ($(HAVE_YAML),)
ALL_CFLAGS += -DMK_HAVE_YAML
YAML_LIB := $(if $(filter /%,$(shell $(CC) -print-file-name=libyaml.a)),-l:libyaml.a,-lyaml)
endif
ifneq ($(HAVE_EFA),)
ALL_CFLAGS += -DMK_HAVE_EFA
else
LIB_C   := $(filter-out backends/efa/%,$(LIB_C))
NIC_C   := $(filter-out backends/softnic/efadv.c,$(NIC_C))
endif
ifneq ($(HAVE_CUDA),)
LIB_CU  := $(wildcard kernels/*/*.cu)
LIB_C   += $(wildcard kernels/*/*.c)
CMD_CU  := $(wildcard experiments/*.cu experiments/*/*.cu)
CUDA_CFLAGS := -DMK_HAVE_CUDA -isystem $(CUDA_HOME)/include
# libcudart_static needs no CUDA library at start: the binary runs on machines without a GPU.
CUDA_LIBS := -L$(CUDA_HOME)/lib64 -lcudart_static -lrt -ldl
GPU_TESTS := $(patsubst tests/%.cu,$(BUILD)/tests/%,$(wildcard tests/gpu_*.cu))
NVCC_GPUS := -gencode=arch=compute_90a,code=sm_90a
# Engine mma runs on every GPU from compute capability 8.0 on: code for those that there are (12.0 where nvcc knows it), and PTX for
# those to come. What includes it, or only moves, and what every run needs is built for all; the rest is Hopper's.
HAVE_SM_120 := $(filter sm_120,$(shell $(NVCC) --list-gpu-code 2>/dev/null))
NVCC_EVERY_GPU := $(NVCC_GPUS) -gencode=arch=compute_80,code=[sm_80,compute_80] $(HAVE_SM_120:%=-gencode=arch=compute_120,code=%)
EVERY_GPU_CU := $(shell grep -lE '"kernels/(mma/(launch(_fp16|_fp8)?|attention)|sums/gemm_reduce_mma)\.cuh"' $(LIB_CU)) $(wildcard kernels/host/*.cu) kernels/ops/quantize.cu $(wildcard tests/gpu_mma*.cu) $(CMD_CU)
$(EVERY_GPU_CU:%.cu=$(BUILD)/%.cu.o): NVCC_GPUS = $(NVCC_EVERY_GPU)
# GEMM operators of bf16 on engine mma have no instruction that is newer than 8.0: nvcc compiles them once, and ptxas makes code for each GPU
# of that PTX. (Of attention, which takes all registers, it then makes some that spill.)
NVCC_FROM_80 := -gencode=arch=compute_80,code=[sm_80,sm_90$(HAVE_SM_120:%=,%),compute_80]
FROM_80_CU := $(filter-out %fp8_mma.cu %attention_mma.cu,$(wildcard kernels/*/*_mma.cu))
$(FROM_80_CU:%.cu=$(BUILD)/%.cu.o): NVCC_GPUS = $(NVCC_FROM_80)
# From 9.0 on tiles come by TMA: PTX of its own, which GPUs that come take too. (MoE gathers rows, and has no other code there.)
NVCC_FROM_90 := -gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_90,code=[sm_90$(HAVE_SM_120:%=,%),compute_90]
$(patsubst %.cu,$(BUILD)/%.cu.o,$(filter-out kernels/moe/%,$(FROM_80_CU))): NVCC_GPUS = $(NVCC_FROM_90)
# Nor has what only moves, or adds, any that is Hopper's alone.
MOVE_CU := $(shell grep -l '"kernels/ops/move\.cuh"' kernels/ops/*.cu)
$(MOVE_CU:%.cu=$(BUILD)/%.cu.o): NVCC_GPUS = $(NVCC_FROM_90)
# Attention has a kernel for these alone.
$(BUILD)/kernels/attention/ring_attention_mma.cu.o: NVCC_GPUS = -gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_90,code=[sm_90,compute_90] $(HAVE_SM_120:%=-gencode=arch=compute_120,code=%)
# mma.sync multiplies e4m3 from 8.9 on. Hopper, which has wgmma for it, runs the PTX.
FP8_MMA_CU := $(wildcard kernels/*/*_fp8_mma.cu tests/gpu_fp8_mma.cu)
NVCC_FP8_MMA := -gencode=arch=compute_89,code=[sm_89,compute_89] $(HAVE_SM_120:%=-gencode=arch=compute_120,code=%)
$(FP8_MMA_CU:%.cu=$(BUILD)/%.cu.o): NVCC_GPUS = $(NVCC_FP8_MMA)
# MoE's, which TMA serves nowhere, from one PTX, as NVCC_FROM_80: a third less to compile, and what moe_ffn keeps lies in registers on 12.0, too.
NVCC_FROM_89 := -gencode=arch=compute_89,code=[sm_89$(HAVE_SM_120:%=,%),compute_89]
$(patsubst %.cu,$(BUILD)/%.cu.o,$(filter kernels/moe/%,$(FP8_MMA_CU))): NVCC_GPUS = $(NVCC_FROM_89)
# Not for a GPU: the driver compiles it.
$(BUILD)/tests/engines/conform_80.cu.o: NVCC_GPUS = -gencode=arch=compute_80,code=compute_80
# Code that a driver unpacks when a kernel is loaded: a fifth of what nvcc makes else. (--compress-mode=size: a seventh, for a tenth of
# the whole build's CPU time.) CUDA 12's nvcc makes it, too, but not all drivers that take CUDA 12 can read it.
NVCC_SMALL := $(if $(filter-out 12,$(NVCC_MAJOR)),--compress-mode=balance -Xfatbin=-compress-all)
NVCC_MEASURED := $(filter 13,$(NVCC_MAJOR))
NVCCFLAGS  = -std=c++17 -O3 -lineinfo -I. $(NVCC_GPUS) $(NVCC_SMALL) -Xptxas=--warn-on-spills $(NVCC_MEASURED:%=-Werror all-warnings) \
             -Xcompiler=-fPIC,-Wall,-Wno-unused-function,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics -DMK_HAVE_CUDA
endif
# The kernels once more, for the emulated Hopper (docs/EMULATION.md): by the C++ compiler against sim/hopper/include, which stands
# in for CUDA. -fsanitize=thread inserts a call at each load and store; sim/hopper/symbols names the machine's functions for them.
EMU_CU  := $(if $(HAVE_CXX),$(filter-out kernels/host/gpu_clock.cu,$(wildcard kernels/*/*.cu)))
EMU_VOLATILE := $(if $(shell $(CXX) --version 2>/dev/null | grep -i clang),-mllvm -tsan-distinguish-volatile=1,--param tsan-distinguish-volatile=1)
EMU_FLAGS := -std=c++17 -O1 -g1 -fPIC -I sim/hopper/include -I. -D__CUDACC__ -DMK_EMULATED -fsanitize=thread -fno-exceptions -fno-rtti -fno-threadsafe-statics \
             -ffp-contract=off -Wno-unknown-pragmas -Wno-psabi $(EMU_VOLATILE)
EMU_O   := $(if $(EMU_CU),$(BUILD)/emulated.o)
ifneq ($(EMU_CU),)
ALL_CFLAGS += -DMK_HAVE_EMULATION
endif
LIB_O := $(LIB_C:%.c=$(BUILD)/%.o) $(LIB_CU:%.cu=$(BUILD)/%.cu.o) $(EMU_O)
NIC_O := $(NIC_C:%.c=$(BUILD)/%.o)
CMD_O := $(CMD_C:%.c=$(BUILD)/%.o) $(TUI_C:%.c=$(BUILD)/%.o) $(CMD_CU:%.cu=$(BUILD)/%.cu.o)
NEED_VERBS := $(if $(HAVE_CXX),,tests/test_hopper% tests/test_run_emulated%) $(if $(HAVE_VERBS),,tests/test_verbs% tests/test_softnic% tests/fuzz_softnic%) $(if $(HAVE_EFA),,tests/test_efa% tests/test_run_efa% tests/fuzz_efa%)
TESTS := $(patsubst tests/%.c,$(BUILD)/tests/%,$(filter-out $(NEED_VERBS),$(wildcard tests/test_*.c)))
FUZZERS := $(if $(HAVE_FUZZ),$(patsubst tests/%.c,$(BUILD)/fuzz/%,$(filter-out $(NEED_VERBS),$(wildcard tests/fuzz_*.c))))
# Soft-RoCE in virtual machines. Not under sanitizers: the machines are emulated, and slow enough.
RXE_TESTS := $(if $(strip $(SAN)$(if $(HAVE_VERBS),,no)),,$(BUILD)/tests/test_rxe_one.sh $(BUILD)/tests/test_rxe.sh)
# Under real launchers. Not under sanitizers either: what they start is tested without launchers there.
LAUNCHER_TESTS := $(if $(strip $(SAN)$(if $(HAVE_VERBS),,no)),,$(BUILD)/tests/test_launchers.sh)
# The Python package's, against the wheel. Not under sanitizers: a Python without them cannot load the library.
PYTHON ?= python3
WHEEL := $(BUILD)/mkernel-$(VERSION)-py3-none-linux_$(shell uname -m).whl
HAVE_PYTHON := $(shell command -v $(PYTHON) >/dev/null && echo yes)
PYTHON_TESTS := $(if $(strip $(SAN)$(if $(HAVE_PYTHON),,no)),,$(patsubst tests/%.py,$(BUILD)/tests/%.sh,$(wildcard tests/test_*.py)))
CHECKED := $(TESTS) $(FUZZERS:%=%.sh) $(RXE_TESTS) $(LAUNCHER_TESTS) $(PYTHON_TESTS)
LIBS  := -lsqlite3 -lopenblas -lm -ldl

.PHONY: all man found help demo test test-rxe check quick asan tsan other-ptxas early-reads test-gpu bench-gpu figures pictures predictions measure-predictions matrix wheel format format-check format-version install install-built uninstall clean FORCE
all: found $(if $(HAVE_VERBS),$(BUILD)/libsoftnic.so) $(BUILD)/libmkernel.so $(BUILD)/mkernel

# One object per source. What needs CUDA's headers, or asks whether they are there, is compiled with CUDA_CFLAGS; all
# are compiled anew where their flags change (another CC, SAN, with or without CUDA).
CUDA_O := $(patsubst %.c,$(BUILD)/%.o,$(shell grep -lE 'MK_HAVE_CUDA|<cuda|"kernels/|baselines\.h|gpu_tensors\.h|gpu_shape\.h|gpu_operands\.h|bench_gpu_row\.h' $(LIB_C) $(CMD_C)))
$(CUDA_O): ALL_CFLAGS += $(CUDA_CFLAGS)
$(CUDA_O): $(BUILD)/flags.cuda

# flags_file NAME,TEXT: a file that is new where TEXT is
define flags_file
$(BUILD)/$(1): FORCE
	@mkdir -p $$(@D); printf '%s\n' '$(2)' | cmp -s - $$@ || printf '%s\n' '$(2)' >$$@
endef
$(eval $(call flags_file,flags,$(CC) $(ALL_CFLAGS)))
$(eval $(call flags_file,flags.emulated,$(CXX) $(EMU_FLAGS)))
$(eval $(call flags_file,flags.cuda,$(CUDA_CFLAGS) $(NVCC) $(NVCCFLAGS) $(NVCC_EVERY_GPU) $(NVCC_FROM_80) $(NVCC_FROM_90) $(NVCC_FP8_MMA) $(NVCC_FROM_89)))
FORCE:
.SECONDARY:

found:
	@echo "found: CUDA=$(or $(NVCC),$(CUDA_MISSING),no) C++=$(or $(HAVE_CXX),no) verbs=$(or $(HAVE_VERBS),no) EFA=$(or $(HAVE_EFA),no) OpenBLAS=$(or $(HAVE_OPENBLAS),no)" \
	      "SQLite=$(or $(HAVE_SQLITE),no) YAML=$(or $(HAVE_YAML),no) ncurses=$(or $(HAVE_NCURSES),no) cmocka=$(or $(HAVE_CMOCKA),no) matplotlib=$(or $(HAVE_PLOTS),no)"

$(BUILD)/%.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CC  ,$<)
	$(Q)$(CC) $(ALL_CFLAGS) -MMD -MP -c $< -o $@

# Spills are no error of ptxas's: its options stand beside the PTX, and a driver that compiles that for another GPU would fail there. They end
# the build where the compiler is the one that figures were measured with; others are slower where they spill, and right.
$(BUILD)/%.cu.o: %.cu $(BUILD)/flags.cuda
	@mkdir -p $(@D)
	$(call say,NVCC,$<)
	$(Q)$(NVCC) $(NVCCFLAGS) -MMD -MP -c $< -o $@ >$@.said 2>&1; status=$$?; cat $@.said >&2; \
	slow() { echo "$<: $$1 ($(if $(NVCC_MEASURED),an error,slower than measured: no error) with CUDA $(NVCC_MAJOR))" >&2; $(if $(NVCC_MEASURED),status=1,:); }; \
	if grep -q 'Registers are spilled' $@.said; then slow "ptxas spills registers, which no kernel here does"; fi; \
	if grep -q 'C75[0-9][0-9].*serialized' $@.said; then slow "ptxas serialises products, which is slow (docs/DESIGN.md, C7515)"; fi; \
	rm -f $@.said; [ $$status = 0 ] || rm -f $@; exit $$status

$(BUILD)/emulated/%.o: %.cu $(BUILD)/flags.emulated
	@mkdir -p $(@D)
	$(call say,EMU ,$<)
	$(Q)$(CXX) $(EMU_FLAGS) -MMD -MP -x c++ -c $< -o $@

# All in one object, of which only C functions are seen, with a prefix: nvcc's objects have the same names.
$(BUILD)/emulated.o: $(EMU_CU:%.cu=$(BUILD)/emulated/%.o) sim/hopper/symbols
	$(call say,LINK,$@)
	$(Q)sh sim/hopper/localize.sh "$(CXX)" $@ $(filter %.o,$^)

# What `mkernel --version` says of the tree: compiled anew where that has changed.
COMMIT := $(shell git describe --always --dirty --exclude '*' 2>/dev/null)
$(BUILD)/experiments/info/version.o: ALL_CFLAGS += -DMK_COMMIT='"$(COMMIT)"'
$(BUILD)/experiments/info/version.o: $(BUILD)/flags.commit
$(eval $(call flags_file,flags.commit,$(COMMIT)))

# .incbin is seen neither by -MMD nor by ccache: flags of the object say what the files hold.
define embeds
$(1): $(2)
$(1): ALL_CFLAGS += -DMK_EMBEDS=$(firstword $(shell cat $(2) | cksum))
endef
$(eval $(call embeds,$(BUILD)/experiments/results/results_file.o,experiments/results/schema.sql))
$(eval $(call embeds,$(BUILD)/experiments/results/results_merge.o,experiments/results/merge.sql))
$(eval $(call embeds,$(BUILD)/experiments/results/results.o,experiments/results/results_plot.py))
$(eval $(call embeds,$(BUILD)/experiments/trace/trace_plot.o,experiments/trace/trace_plot.py))
$(eval $(call embeds,$(BUILD)/experiments/sim/validate_report.o,experiments/sim/validate_plot.py))
$(eval $(call embeds,$(BUILD)/experiments/sim/validate.o,experiments/sim/validate.sql))
$(eval $(call embeds,$(BUILD)/experiments/common/picture.o,experiments/common/picture.py))
$(eval $(call embeds,$(BUILD)/tracer/sql.o,$(wildcard tracer/*.sql)))
$(eval $(call embeds,$(BUILD)/experiments/trace/trace_summary.o,experiments/trace/summary.sql))
$(eval $(call embeds,$(BUILD)/core/plan/tuning_file.o $(BUILD)/fuzz/core/plan/tuning_file.o,core/plan/tuning.plans))
$(eval $(call embeds,$(BUILD)/core/model/machine.o $(BUILD)/fuzz/core/model/machine.o,$(wildcard experiments/machines/*)))

$(BUILD)/libsoftnic.so: $(NIC_O)
	$(call say,LINK,$@)
	$(Q)$(CC) -shared $(LDFLAGS) -o $@ $^ -ldl

# A file with its version, the name that programs load (soname), and the one that they are linked with. A name in the map that
# no object defines is an error. -Bsymbolic: the library calls its own functions whatever a program has of the same name.
$(BUILD)/libmkernel.so: $(LIB_O) core/mkernel.map
	$(call say,LINK,$@)
	$(Q)$(CC) -shared $(LDFLAGS) -Wl,-soname,$(SONAME),-Bsymbolic,--version-script=core/mkernel.map,--no-undefined-version -o $@.$(VERSION) $(LIB_O) $(LIBS) $(CUDA_LIBS)
	$(Q)ln -sf libmkernel.so.$(VERSION) $(BUILD)/$(SONAME) && ln -sf $(SONAME) $@

# The kernels are in the library alone, which the command and the tests for GPUs load. Other tests link the objects, and replace some.
$(BUILD)/mkernel: $(CMD_O) $(BUILD)/libmkernel.so
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS) -o $@ $(CMD_O) -L$(BUILD) -lmkernel -Wl,-rpath,'$$ORIGIN:$$ORIGIN/../lib' $(LIBS) $(CUDA_LIBS) $(YAML_LIB) -lncursesw

# What the commands are made of, for their unit tests: a test takes from the archive what it calls. (q: files of one name in
# several folders are members of their own; r would let the last replace the others.)
$(BUILD)/commands.a: $(filter-out %/experiments/main.o,$(CMD_O))
	$(call say,AR  ,$@)
	$(Q)rm -f $@ && ar qcs $@ $^

# Tests of kernels that are not the library's: those are compiled for the emulated Hopper too.
$(BUILD)/tests/emulated_conform.o: $(BUILD)/emulated/tests/gpu_conform.o
$(BUILD)/tests/emulated_route.o: $(BUILD)/emulated/tests/gpu_route.o
$(BUILD)/tests/emulated_check.o: $(patsubst %,$(BUILD)/emulated/experiments/%.o,ops/check_gemm_gpu ops/check_attention_gpu ops/check_moe_ffn_gpu job/gpu_tensors) | $(EMU_O)
$(BUILD)/tests/emulated_engines.o: $(patsubst %,$(BUILD)/emulated/tests/%.o,engines/attention engines/gemm engines/gemm_fp8 engines/gemm_grouped gpu_mma gpu_mma_attention) | $(EMU_O)
$(BUILD)/tests/emulated_%.o: sim/hopper/symbols
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)WITH=$(filter %/emulated.o,$|) sh sim/hopper/localize.sh "$(CXX)" $@ $(filter %.o,$^)
$(BUILD)/tests/test_hopper_conform $(BUILD)/tests/test_hopper_check $(BUILD)/tests/test_hopper_route: $(BUILD)/tests/test_hopper_%: $(BUILD)/tests/emulated_%.o
$(BUILD)/tests/test_hopper_conform $(BUILD)/tests/test_hopper_check $(BUILD)/tests/test_hopper_route: TEST_O = $(BUILD)/tests/emulated_$(@:$(BUILD)/tests/test_hopper_%=%).o
# What launches an engine alone, which only tests do (tests/engines/).
ENGINE_TESTS := $(patsubst %,$(BUILD)/tests/test_hopper_%,attention gemm fp8 grouped fences mutants)
$(ENGINE_TESTS): $(BUILD)/tests/emulated_engines.o
$(ENGINE_TESTS): TEST_O = $(BUILD)/tests/emulated_engines.o
$(BUILD)/tests/gpu_conform: $(BUILD)/tests/engines/conform_80.cu.o
$(BUILD)/tests/gpu_gemm: $(BUILD)/tests/engines/gemm.cu.o
$(BUILD)/tests/gpu_fp8: $(BUILD)/tests/engines/gemm_fp8.cu.o
$(BUILD)/tests/gpu_grouped: $(BUILD)/tests/engines/gemm_grouped.cu.o
$(BUILD)/tests/gpu_attention: $(BUILD)/tests/engines/attention.cu.o

# Tests of what only builds with CUDA have, or only those without.
$(BUILD)/tests/test_bench_moe.o $(BUILD)/tests/test_exec_cuda.o $(BUILD)/tests/test_quantize.o: ALL_CFLAGS += $(if $(HAVE_CUDA),$(CUDA_CFLAGS))

$(BUILD)/tests/%: $(BUILD)/tests/%.o $(LIB_O) $(BUILD)/commands.a
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS) -o $@ $< $(TEST_O) $(BUILD)/commands.a $(LIB_O) $(LIBS) $(CUDA_LIBS) $(YAML_LIB) -lcmocka -lncursesw

# The second engine alone needs nothing of the library, nor does the engine of a decoder.
SECOND_ENGINE := $(BUILD)/tests/gpu_mma $(BUILD)/tests/gpu_mma_attention $(BUILD)/tests/gpu_decode
$(BUILD)/tests/gpu_mma: $(BUILD)/kernels/hopper/tensormap.cu.o
$(SECOND_ENGINE): $(BUILD)/tests/%: $(BUILD)/tests/%.cu.o
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ -lm -lstdc++ $(CUDA_LIBS)

$(BUILD)/tests/gpu_%: $(BUILD)/tests/gpu_%.cu.o $(BUILD)/libmkernel.so
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS) -o $@ $(filter %.o,$^) -L$(BUILD) -lmkernel -Wl,-rpath,'$$ORIGIN/..' $(LIBS) $(CUDA_LIBS)

$(WHEEL): $(BUILD)/libmkernel.so $(BUILD)/mkernel $(if $(HAVE_VERBS),$(BUILD)/libsoftnic.so) $(wildcard experiments/python/*.py experiments/python/mkernel/*) core/mkernel.h
	$(call say,WHEEL,$@)
	$(Q)$(PYTHON) experiments/python/build_wheel.py $(BUILD) $(BUILD) >/dev/null

$(BUILD)/tests/test_%.sh: tests/test_%.py tests/helpers/python.sh $(WHEEL)
	@mkdir -p $(@D)
	@printf '#!/bin/sh\n# LIMIT=1500\nexec sh tests/helpers/python.sh $< $(WHEEL) $(BUILD)/tests/$* $(if $(filter house python_numpy python_package,$*),numpy,torch) "$$@"\n' >$@ && chmod +x $@

# run.sh keeps a log beside each program, so these stand in the build folder too.
$(BUILD)/tests/%.sh: tests/%.sh
	@mkdir -p $(@D)
	@printf '#!/bin/sh\n# LIMIT=900\n$(if $(filter test_rxe,$*),$(HASH) ALONE\n)BUILD=$(BUILD) LIMIT=890 exec bash $< "$$@"\n' >$@ && chmod +x $@

# ---- what a person runs ----

# Where there is an nvcc and no GPU the kernels, 11 minutes of CPU time, are of no use to the demo, and in one folder its build and
# plain make's would throw each other's objects away.
DEMO_BUILD = $(if $(and $(HAVE_CUDA),$(if $(HAVE_GPU),,yes),$(if $(wildcard $(BUILD)/mkernel),,yes)),$(BUILD)/demo,$(BUILD))

demo: ## install what is missing, build, run two operators on 2 nodes (on a GPU, where there is one), show overlap and timeline
	@sh experiments/setup.sh demo
	@[ $(DEMO_BUILD) = $(BUILD) ] || echo "demo: no GPU here, so this build, in $(DEMO_BUILD), is without CUDA; plain make builds the kernels"
	@$(MAKE) --no-print-directory -j$$(nproc) $(if $(filter-out $(BUILD),$(DEMO_BUILD)),BUILD=$(DEMO_BUILD) CUDA_HOME= NVCC=) all
	@sh experiments/demo.sh $(DEMO_BUILD)

test: ## install what is missing, build, run every test that can run on this machine
	@sh experiments/setup.sh test $(BUILD)
	@$(MAKE) --no-print-directory -j$$(nproc) all
	@$(MAKE) --no-print-directory -j$$(nproc) check

check: $(if $(HAVE_VERBS),$(BUILD)/libsoftnic.so) $(BUILD)/libmkernel.so $(BUILD)/mkernel $(TESTS) $(FUZZERS) $(RXE_TESTS) $(LAUNCHER_TESTS) $(PYTHON_TESTS) $(if $(HAVE_CUDA),$(GPU_TESTS)) ## the tests (those for GPUs are only built), without installing anything
	@tests/run.sh $(CHECKED)

quick: ## the tests that a change touches, as many as fit into a minute (SINCE=REV: since then; else since main)
	@programs=$$(SINCE=$(SINCE) PROGRAMS="$(CHECKED)" tests/quick.sh $(BUILD)); known=$$?; [ $$known = 0 ] || [ $$known = 3 ] || exit $$known; \
	[ -z "$$programs" ] || { $(MAKE) --no-print-directory -j$$(nproc) all $$programs && tests/run.sh $$programs; } && exit $$known

asan: ## the tests under the address and undefined-behaviour sanitizers
	@$(MAKE) --no-print-directory BUILD=$(BUILD)/asan SAN=address,undefined FUZZERS= CUDA_HOME= NVCC= check

tsan: ## the tests under the thread sanitizer
	@# OpenBLAS's own threads are not instrumented: one thread has no races to make up.
	@OPENBLAS_NUM_THREADS=1 $(MAKE) --no-print-directory BUILD=$(BUILD)/tsan SAN=thread FUZZERS= CUDA_HOME= NVCC= check

test-rxe: ## the same pipeline over the kernel's soft-RoCE, in virtual machines (NATIVE=1: on this machine's own rxe0)
	@sh experiments/setup.sh rxe
	@$(MAKE) --no-print-directory -j$$(nproc) $(BUILD)/mkernel $(BUILD)/libsoftnic.so $(RXE_TESTS)
	@$(if $(RXE_TESTS),tests/run.sh $(RXE_TESTS),echo "test-rxe: nothing to run: no verbs in this build, or sanitizers"; false)

test-gpu: all $(GPU_TESTS) ## the tests that need GPUs: all on Hopper, those of engine mma on others of compute capability 8.0 and up
	@bash tests/gpu_host.sh $(BUILD)

bench-gpu: all $(GPU_TESTS) ## the same, then the tables of docs/FIGURES.md: GEMM engine, AllGather+GEMM, tracing, emulated nodes
	@bash tests/gpu_host.sh $(BUILD) bench

figures: all ## reprint the figures of docs/FIGURES.md that need no GPU
	@sh experiments/figures.sh $(BUILD)

pictures: all ## the pictures of the documents (python3, matplotlib): two are measured, the others simulated
	@bash docs/pictures.sh $(BUILD) draw

measure-predictions: all ## its tables measured on this host's GPUs, and both compared (OUT=FOLDER; at most 20 minutes)
	@python3 docs/predictions.py $(BUILD)/mkernel measure $$(nvidia-smi -L | wc -l) $(OUT)

predictions: all ## docs/PREDICTIONS.md: what the simulator says of 4 and more GPUs (python3; minutes)
	@python3 docs/predictions.py $(BUILD)/mkernel

other-ptxas: ## by hand: PTX of all kernels through another CUDA's ptxas (PTXAS=FILE), host sources through its headers (CUDA_HEADERS="FOLDER ..")
	@[ -x "$(PTXAS)" ] && [ -n "$(LIB_CU)" ] || { echo "other-ptxas: PTXAS=FILE names the other ptxas, an executable, and nvcc is there to make PTX" >&2; exit 2; }
	@for c in $(if $(CUDA_HEADERS),$(filter-out experiments/baselines/%,$(CUDA_O:$(BUILD)/%.o=%.c))); do $(CC) $(ALL_CFLAGS) -DMK_HAVE_CUDA $(CUDA_HEADERS:%=-isystem %) -fsyntax-only $$c || exit 1; done
	@rm -rf $(BUILD)/other-ptxas
	@PTXAS=$(abspath $(PTXAS)) REAL_NVCC=$(NVCC) $(MAKE) --no-print-directory -k BUILD=$(BUILD)/other-ptxas NVCC=tests/other_ptxas.sh \
	    NVCC_MAJOR=$$($(PTXAS) --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p') $(LIB_CU:%.cu=$(BUILD)/other-ptxas/%.cu.o)

early-reads: $(LIB_CU:%.cu=$(BUILD)/%.cu.o) ## by hand: no kernel reads registers before they are zero (cuobjdump, nvdisasm and ptxas in PATH)
	@$(if $(LIB_CU),:,echo "early-reads: without nvcc there are no kernels" >&2; exit 2)
	@python3 tests/early_reads.py $^

matrix: ## the tests built by gcc and clang, with and without CUDA, then under the sanitizers: an hour on two cores
	@$(MAKE) --no-print-directory BUILD=$(BUILD)/gcc CC=gcc check
	@$(MAKE) --no-print-directory BUILD=$(BUILD)/clang CC=$(CLANG) check
	@$(MAKE) --no-print-directory BUILD=$(BUILD)/gcc-no-cuda CC=gcc CUDA_HOME= NVCC= FUZZERS= check
	@$(MAKE) --no-print-directory BUILD=$(BUILD)/clang-no-cuda CC=$(CLANG) CUDA_HOME= NVCC= FUZZERS= check
	@$(MAKE) --no-print-directory asan tsan

# Versions of clang-format disagree about white space: one is pinned, Debian 12's.
FORMAT_VERSION := 14
CLANG_FORMAT ?= $(or $(shell command -v clang-format-$(FORMAT_VERSION)),clang-format)
SOURCES = $(wildcard $(shell git ls-files -co --exclude-standard '*.c' '*.h' '*.cu' '*.cuh')) # what is not added yet, too

format-version:
	@$(CLANG_FORMAT) --version 2>&1 | grep -q 'version $(FORMAT_VERSION)\.' || { \
		echo "format: $(CLANG_FORMAT) is not clang-format $(FORMAT_VERSION); install clang-format-$(FORMAT_VERSION)" >&2; exit 3; }

format: format-version ## clang-format over the tree
	@$(CLANG_FORMAT) -i $(SOURCES)

format-check: format-version ## which lines `make format` would change
	@$(CLANG_FORMAT) --dry-run -Werror $(SOURCES)
	@! awk 'FNR == 1 { code = 0 } /^```/ { code = !code } length > 200 && !code && !/^(\||    )/ { print FILENAME ":" FNR ": more than 200 columns, in no table"; n++ } END { exit !n }' *.md docs/*.md

MAN_PAGE = sh experiments/shell/man.sh $(BUILD)/mkernel $(VERSION) >$(BUILD)/mkernel.1.new && mv $(BUILD)/mkernel.1.new $(BUILD)/mkernel.1
$(BUILD)/mkernel.1: $(BUILD)/mkernel experiments/shell/man.sh docs/ENVIRONMENT.md
	$(call say,MAN ,$@)
	$(Q)$(MAN_PAGE)

man: $(BUILD)/mkernel.1 ## the man page, of what the commands say of themselves

# Where each file goes; uninstall removes these. (types.h and registry.h are found by mkernel.h beside it.)
INSTALLED = $(PREFIX)/bin/mkernel $(LIBDIR)/libmkernel.so $(LIBDIR)/$(SONAME) $(LIBDIR)/libmkernel.so.$(VERSION) $(LIBDIR)/libsoftnic.so \
            $(PREFIX)/share/man/man1/mkernel.1 $(PREFIX)/share/bash-completion/completions/mkernel \
            $(LIBDIR)/pkgconfig/mkernel.pc $(INCLUDEDIR)/mkernel/mkernel.h $(INCLUDEDIR)/mkernel/types.h $(INCLUDEDIR)/mkernel/ops/registry.h

install: all $(BUILD)/mkernel.1 ## the command, the libraries, the header and mkernel.pc under PREFIX=/usr/local (DESTDIR, LIBDIR, INCLUDEDIR)
	@$(MAKE) --no-print-directory install-built

install-built: # what is built, as it is: nothing is built anew, also where this make finds no CUDA or another compiler
	@test -e $(BUILD)/mkernel.1 || { $(MAN_PAGE); }
	install -D -t $(DESTDIR)$(PREFIX)/bin $(BUILD)/mkernel
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/man/man1 $(BUILD)/mkernel.1
	install -D -m 644 experiments/shell/mkernel.bash $(DESTDIR)$(PREFIX)/share/bash-completion/completions/mkernel
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/mkernel/baselines experiments/baselines/*.py
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/mkernel/experiments docs/experiments/*.yaml
	install -D -m 644 -t $(DESTDIR)$(LIBDIR) $(BUILD)/libmkernel.so.$(VERSION) $(wildcard $(BUILD)/libsoftnic.so)
	ln -sf libmkernel.so.$(VERSION) $(DESTDIR)$(LIBDIR)/$(SONAME)
	ln -sf $(SONAME) $(DESTDIR)$(LIBDIR)/libmkernel.so
	install -D -m 644 -t $(DESTDIR)$(INCLUDEDIR)/mkernel core/mkernel.h core/types.h
	install -D -m 644 -t $(DESTDIR)$(INCLUDEDIR)/mkernel/ops core/ops/registry.h
	mkdir -p $(DESTDIR)$(LIBDIR)/pkgconfig
	printf '%s\n' 'prefix=$(PREFIX)' 'libdir=$(LIBDIR)' 'includedir=$(INCLUDEDIR)' '' 'Name: mkernel' \
	  'Description: fused compute and communication operators for several GPUs and nodes' 'Version: $(VERSION)' \
	  'Libs: -L$${libdir} -lmkernel' 'Cflags: -I$${includedir}' >$(DESTDIR)$(LIBDIR)/pkgconfig/mkernel.pc

wheel: $(WHEEL) ## the Python package as a wheel: pip install build/mkernel-*.whl
	@echo $(WHEEL)

uninstall: ## remove what install laid down (the same PREFIX, DESTDIR, LIBDIR, INCLUDEDIR)
	rm -f $(addprefix $(DESTDIR),$(INSTALLED))
	rm -rf $(DESTDIR)$(PREFIX)/share/mkernel
	-rmdir $(DESTDIR)$(INCLUDEDIR)/mkernel/ops $(DESTDIR)$(INCLUDEDIR)/mkernel

clean: ## remove build/
	rm -rf $(BUILD)

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 18
	@echo "  variables: CUDA_HOME=$(CUDA_HOME) CC=$(CC) CFLAGS=$(CFLAGS) BUILD=$(BUILD) PREFIX=$(PREFIX); CUDA_HOME= NVCC= builds without CUDA, V=1 shows commands"

# ---- fuzzers: the library once more, built by clang with coverage ----

FUZZ_FLAGS := $(if $(HAVE_VERBS),-DMK_HAVE_VERBS) $(if $(HAVE_EFA),-DMK_HAVE_EFA) -std=gnu11 -D_GNU_SOURCE -g -O1 -I. -pthread -fPIC -Wall -Wno-unused-parameter -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined
FUZZ_O := $(patsubst %.c,$(BUILD)/fuzz/%.o,$(filter-out kernels/%,$(LIB_C)) $(NIC_C))

$(BUILD)/fuzz/%.o: %.c
	@mkdir -p $(@D)
	$(call say,CLANG,$<)
	$(Q)$(CLANG) $(FUZZ_FLAGS) -MMD -MP -c $< -o $@

# An archive, so that a fuzzer links what it calls and not the kernels' host side, which needs CUDA objects.
$(BUILD)/fuzz/library.a: $(FUZZ_O)
	$(call say,AR  ,$@)
	$(Q)rm -f $@ && ar qcs $@ $^

$(BUILD)/fuzz/fuzz_%: $(BUILD)/fuzz/tests/fuzz_%.o $(BUILD)/fuzz/library.a
	$(call say,LINK,$@)
	$(Q)$(CLANG) -fsanitize=fuzzer,address,undefined -pthread -o $@ $^ $(LIBS)
	@printf '#!/bin/sh\nexec sh tests/fuzz.sh $@\n' > $@.sh && chmod +x $@.sh
$(BUILD)/fuzz/fuzz_%.sh: $(BUILD)/fuzz/fuzz_% ;

-include $(shell find $(BUILD) -type f -name '*.d' 2>/dev/null)

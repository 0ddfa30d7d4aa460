# The newcomer's door: each target is one command; the work is done by CMake and tools/.
#
#   make build    build/release/flashlane
#   make serve    install what is missing, build, serve the bundled model on 127.0.0.1:$(PORT)
#   make test     install what is missing, then everything CI runs
#   make check    incremental check before a commit
#   make format   clang-format on our sources
#   make clean    remove build/

PORT ?= 8080
JOBS ?= $(shell nproc)

.PHONY: build serve test check format clean
.DEFAULT_GOAL := build

# Without the test packages the tests are left out of the build, so that serving needs fewer.
build:
	@tests=OFF; if tools/setup --installed test; then tests=ON; fi; \
	  cmake --preset release -DFLASHLANE_TESTS=$$tests
	cmake --build build/release -j $(JOBS) --target flashlane

serve:
	tools/setup build
	@$(MAKE) --no-print-directory build
	exec build/release/flashlane serve --host 127.0.0.1 --port $(PORT)

# Nothing may follow ctest: its closing lines are the result.
test:
	tools/setup test
	cmake --preset release -DFLASHLANE_TESTS=ON -DFLASHLANE_FULL_TESTS=OFF
	cmake --build build/release -j $(JOBS)
	ctest --test-dir build/release -j $(JOBS) --output-on-failure --no-label-summary

check:
	@tools/check

format:
	git ls-files -co --exclude-standard '*.cc' '*.h' | xargs -r clang-format -i

clean:
	rm -rf build

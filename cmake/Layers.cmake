# One library per folder of src/. The link line is the layer rule: a folder sees what it names here
# and nothing else (tools/check_layers.py checks the includes as well).
#
#   flashlane_layer(kernels DEPENDS base tensor LIBRARIES Threads::Threads)
function(flashlane_layer name)
  cmake_parse_arguments(LAYER "" "WITHOUT" "DEPENDS;LIBRARIES" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${name}/*.cc)
  if(LAYER_WITHOUT)  # a regular expression of sources that are not always built
    list(FILTER sources EXCLUDE REGEX ${LAYER_WITHOUT})
  endif()
  if(sources)
    add_library(flashlane_${name} STATIC ${sources})
    set(scope PUBLIC)
  else()
    add_library(flashlane_${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(flashlane_${name} ${scope} ${CMAKE_CURRENT_SOURCE_DIR})
  foreach(dependency ${LAYER_DEPENDS})
    target_link_libraries(flashlane_${name} ${scope} flashlane_${dependency})
  endforeach()
  target_link_libraries(flashlane_${name} ${scope} ${LAYER_LIBRARIES})
endfunction()

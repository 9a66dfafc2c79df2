# Decides which GPU backends are built, and says so. For each backend X in CUDA, HIP:
#   DSPARK_X_BUILD          whether it is built
#   DSPARK_X_STATE          "built", or "not built: <why>": the words that build_info() reports
#   DSPARK_X_ARCHITECTURES  what for
#   DSPARK_X_COMPILER_ID    with which compiler
#   DSPARK_X_COMMAND        and how, without input and output
if(NOT CMAKE_SYSTEM_NAME STREQUAL "Linux")
  message(FATAL_ERROR "dspark_ext: only Linux is supported, this is ${CMAKE_SYSTEM_NAME}.")
endif()
set(DSPARK_TRY_SOURCE ${CMAKE_CURRENT_LIST_DIR}/try_gpu.cu)
set(DSPARK_GPU_INCLUDES -I${CMAKE_CURRENT_SOURCE_DIR} -I${CMAKE_CURRENT_SOURCE_DIR}/csrc)

# Leaves the backend out; an error where it was asked for. To name architectures is to ask for it:
# none is dropped in silence.
macro(dspark_not_built backend reason)
  set(asked "${DSPARK_${backend}_ASKED}")
  if(DSPARK_${backend} STREQUAL "ON")
    set(asked "DSPARK_${backend}=ON")
  endif()
  if(asked)
    message(FATAL_ERROR "dspark_ext: ${asked}: ${reason}. "
                        "DSPARK_${backend}=OFF builds without (docs/install.md).")
  endif()
  set(DSPARK_${backend}_BUILD OFF)
  set(DSPARK_${backend}_STATE "not built: ${reason}")
endmacro()

# DSPARK_<backend>_ARCHITECTURES from the option, else the environment variable of that name, else
# torch's (its words are in torch_list then), else as given; and _ASKED, the name of what was used.
macro(dspark_architectures backend torch_variable)
  set(name DSPARK_${backend}_ARCHITECTURES)
  set(torch_list "")
  set(DSPARK_${backend}_ASKED "")
  if(${name})
    set(DSPARK_${backend}_ASKED ${name})
  elseif(NOT "$ENV{${name}}" STREQUAL "")
    set(DSPARK_${backend}_ASKED ${name})
    set(${name} $ENV{${name}})
  elseif(NOT "$ENV{${torch_variable}}" STREQUAL "")
    string(REGEX MATCHALL "[^ ;,]+" torch_list "$ENV{${torch_variable}}")
    set(${name} ${torch_list})
  else()
    set(${name} ${ARGN})
  endif()
endmacro()

# Whether a compiler command, without input and output, compiles a kernel written on the shim; puts
# the first error into <result>, or nothing. The command is tried again only if it changes.
function(dspark_try_gpu result)
  string(SHA256 key "${ARGN}")
  if(NOT DEFINED DSPARK_TRIED_${key})
    execute_process(COMMAND ${ARGN} -c ${DSPARK_TRY_SOURCE} -o ${CMAKE_BINARY_DIR}/try_gpu.o
                    RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output)
    set(error "")
    if(NOT code EQUAL 0)
      string(REGEX MATCH "[^\n]*([Ee]rror|[Ff]atal|nsupported|not found)[^\n]*" error "${output}")
      string(REGEX REPLACE "[\"\\|;]" "'" error "${error}")  # the words end up in a C string
      string(STRIP "${error}" error)
      if(NOT error)
        set(error "exit status ${code}")
      endif()
    endif()
    set(DSPARK_TRIED_${key} "${error}" CACHE INTERNAL "")
  endif()
  set(${result} "${DSPARK_TRIED_${key}}" PARENT_SCOPE)
endfunction()

# Adds a command that compiles one GPU source; the rest of the arguments is the compiler command.
function(dspark_gpu_object object source)
  cmake_path(GET object PARENT_PATH folder)
  file(MAKE_DIRECTORY ${folder})
  set(source ${CMAKE_CURRENT_SOURCE_DIR}/${source})
  cmake_path(RELATIVE_PATH object BASE_DIRECTORY ${CMAKE_BINARY_DIR} OUTPUT_VARIABLE name)
  add_custom_command(OUTPUT ${object} DEPENDS ${source} DEPFILE ${object}.d VERBATIM
                     COMMAND ${ARGN} -MD -MF ${object}.d -MT ${object} -c ${source} -o ${object}
                     COMMENT "Building GPU object ${name}")
endfunction()

# Adds the commands that compile each source for a backend; puts the object files into <result>.
function(dspark_gpu_objects backend result)
  string(TOLOWER ${backend} folder)
  set(objects "")
  foreach(source IN LISTS ARGN)
    set(object ${CMAKE_CURRENT_BINARY_DIR}/${folder}/${source}.o)
    dspark_gpu_object(${object} ${source} ${DSPARK_${backend}_COMMAND})
    list(APPEND objects ${object})
  endforeach()
  set(${result} ${objects} PARENT_SCOPE)
endfunction()

foreach(backend CUDA HIP)
  string(TOUPPER "${DSPARK_${backend}}" DSPARK_${backend})
  set(DSPARK_${backend}_BUILD OFF)
  if(NOT DSPARK_${backend} MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "dspark_ext: DSPARK_${backend}: expected AUTO, ON or OFF, "
                        "got ${DSPARK_${backend}}.")
  elseif(DSPARK_${backend} STREQUAL "OFF")
    set(DSPARK_${backend}_STATE "not built: DSPARK_${backend}=OFF")
  elseif(backend STREQUAL "CUDA")
    include(${CMAKE_CURRENT_LIST_DIR}/CudaBackend.cmake)
  else()
    include(${CMAKE_CURRENT_SOURCE_DIR}/hip/hip.cmake)
  endif()
  message(STATUS "dspark_ext: ${backend} backend ${DSPARK_${backend}_STATE}")
  # For build_info(): four fields, the last three of them empty unless built.
  set(DSPARK_${backend}_FACTS "${DSPARK_${backend}_STATE}|||")
  if(DSPARK_${backend}_BUILD)
    string(JOIN " " architectures ${DSPARK_${backend}_ARCHITECTURES})
    string(JOIN " " flags ${DSPARK_${backend}_NUMERICS})
    string(JOIN "|" DSPARK_${backend}_FACTS "${DSPARK_${backend}_STATE}" "${architectures}"
           "${DSPARK_${backend}_COMPILER_ID}" "${flags}")
  endif()
endforeach()

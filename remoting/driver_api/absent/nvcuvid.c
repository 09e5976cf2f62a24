// libnvcuvid.so.1 for programs behind the door: decoders of video are not there. Without it a program may
// find NVIDIA's own, which waits for ever where there is no GPU (nvJPEG's does so).
#define NOT_SUPPORTED 801  // CUDA_ERROR_NOT_SUPPORTED
#define STATE_ERROR (-1)   // cudaVideoState_Error

#define REFUSE(name)                                         \
    __attribute__((visibility("default"))) int name(void);   \
    int name(void) { return NOT_SUPPORTED; }

REFUSE(cuvidGetDecoderCaps)
REFUSE(cuvidCreateDecoder)
REFUSE(cuvidDestroyDecoder)
REFUSE(cuvidDecodePicture)
REFUSE(cuvidGetDecodeStatus)
REFUSE(cuvidReconfigureDecoder)
REFUSE(cuvidMapVideoFrame)
REFUSE(cuvidMapVideoFrame64)
REFUSE(cuvidUnmapVideoFrame)
REFUSE(cuvidUnmapVideoFrame64)
REFUSE(cuvidCtxLockCreate)
REFUSE(cuvidCtxLockDestroy)
REFUSE(cuvidCtxLock)
REFUSE(cuvidCtxUnlock)
REFUSE(cuvidCreateVideoSource)
REFUSE(cuvidCreateVideoSourceW)
REFUSE(cuvidDestroyVideoSource)
REFUSE(cuvidSetVideoSourceState)
REFUSE(cuvidGetSourceVideoFormat)
REFUSE(cuvidGetSourceAudioFormat)
REFUSE(cuvidCreateVideoParser)
REFUSE(cuvidParseVideoData)
REFUSE(cuvidDestroyVideoParser)
// nvJPEG of CUDA 13 asks for these without a look at what it found, and goes on without a hardware decoder
// when the first refuses. Without them it calls a null pointer.
REFUSE(__std_2U4S4U_X08)
REFUSE(__std_2U4S4AD_X08)

__attribute__((visibility("default"))) int cuvidGetVideoSourceState(void);
int cuvidGetVideoSourceState(void) { return STATE_ERROR; }

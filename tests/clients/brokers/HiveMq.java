import com.hivemq.embedded.EmbeddedHiveMQ;
import java.nio.file.Path;

/** HiveMQ CE with the configuration in a folder: java HiveMq.java CONFIGURATION DATA EXTENSIONS. */
public class HiveMq {
    public static void main(String[] folders) throws Exception {
        EmbeddedHiveMQ.builder()
                .withConfigurationFolder(Path.of(folders[0]))
                .withDataFolder(Path.of(folders[1]))
                .withExtensionsFolder(Path.of(folders[2]))
                .build()
                .start()
                .join();
        Thread.currentThread().join();
    }
}
